"""The model card of the trained checkpoint, filled from JSON reports; what is missing is said."""

from collections.abc import Mapping
from pathlib import Path

_MISSING = "not measured"
_WANTED = {
    "shape and colour": "0.9 or more",
    "motion": "0.8 or more",
    "pitch": "0.8 or more",
    "pan correlation": "0.8 or more",
    "click offset, ms, median": "42 or less",
    "click offset, ms, p90": "84 or less",
    "keyframes: keyframe PSNR, dB": "24 or more",
    "picture: look kept": "0.8 or more",
    "voice: look kept": "0.8 or more",
}
"""What the trained model is meant to reach; a card shows it beside what was measured."""
_WANTED_PSNR = "32 or more"
_CARD = """\
# h3-tiny

A small model with the architecture of MiniMax-H3, trained on clips made by a program: one or two
coloured shapes that drift, bounce, orbit, grow or blink, with a tone and clicks tied to the
picture. It runs on a laptop's CPU. It exists so that the software can be shown and its choices of
speed against quality judged; it knows nothing beyond these clips.

- Layout: official partitions `FL2VA` (text, keyframes) and `Ref2VA` (references); the second links
  what it shares with the first.
- Clips: 128x128 or 192x128, 24 frames a second, 107 to 141 frames, 32 kHz stereo.
- Parameters: {parameters}. Bytes of weights: {bytes}.

## Prompts

As the training captions: "a red circle bounces to the left on a blue ground", "a small green star
orbits slowly clockwise and a large white square blinks over a purple background". The words:
small, large; red, orange, yellow, green, cyan, blue, purple, white, grounds black and grey too;
circle, square, triangle, star, cross; drifts or moves to the left, to the right, upwards,
downwards; bounces in place or up and down, to the left, to the right; orbits or circles clockwise,
counterclockwise; grows, gets bigger, shrinks, gets smaller; blinks, flashes on and off; slowly,
quickly. With references:
"a object of picture 1 ...", "a object of picture 1 that sounds like audio 1 ...", "video 1 goes on:
...".

## Training

Everything is procedural and fixed by seeds; no file of anybody else was used. Recipe and commands:
`docs/h3-tiny.md`.

| part | documents | steps | seconds on one H200 | held-out loss, negative |
|---|---|---|---|---|
{training}

The vision tower keeps its random weights; 40 of the text encoder's 50 layers pass the stream on.

## Figures

Autoencoders on held-out clips, through the loaders of the server:

{autoencoders}

Clips on held-out prompts (`h3 eval --checkpoint`), {points} points:

| figure | value | wanted | cases |
|---|---|---|---|
{figures}

## Limits

Where a figure above is short of what is wanted, believe the figure. Prompts outside the vocabulary
give arbitrary shapes. Sizes and lengths other than those above were not trained. A keyframe, a
reference picture, sound or clip must be of the kind that `h3 eval` makes.

## Licences

Code: Apache-2.0, see `LICENSE` of the repository. These weights: Apache-2.0 too; they were trained
from random numbers and hold nothing of the released model. The released MiniMax-H3 weights are
another thing: they are under the MiniMax H3 Community License, https://huggingface.co/MiniMaxAI.
Before serving them an operator must read it and check territory, permitted uses, size of the
business and notices.
"""


def model_card(target: Path, reports: Mapping[str, object]) -> str:
    """Fill the card.

    Args:
        target: the assembled checkpoint, for sizes.
        reports: `training_FL2VA`, `training_Ref2VA`, `vae` and `eval`, whichever there are.
    """
    sizes = {
        f"{partition.name}/{part.name}": _size(part)
        for partition in sorted(target.iterdir())
        if partition.is_dir()
        for part in sorted(partition.iterdir())
        if part.is_dir() and not part.is_symlink() and _size(part)
    }
    evaluation = _mapping(reports.get("eval"))
    return _CARD.format(
        parameters=f"{sum(sizes.values()) / 2e6:.1f} million",
        bytes=", ".join(f"{name} {size:,}" for name, size in sizes.items()),
        training=_training(reports),
        autoencoders=_autoencoders(_mapping(reports.get("vae"))),
        points=evaluation.get("points", _MISSING),
        figures=_figures(_mapping(evaluation.get("figures"))),
    )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.safetensors"))


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _training(reports: Mapping[str, object]) -> str:
    lines = []
    for partition in ("FL2VA", "Ref2VA"):
        facts = _mapping(reports.get(f"training_{partition}"))
        values = (
            facts.get("documents", _MISSING),
            facts.get("steps", _MISSING),
            _number(facts.get("seconds")),
            _number(facts.get("best_score")),  # of the weights that were kept
        )
        lines.append(f"| {partition} | " + " | ".join(map(str, values)) + " |")
    return "\n".join(lines)


def _autoencoders(report: Mapping[str, object]) -> str:
    canvases = {name: _mapping(value) for name, value in report.items() if "x" in name}
    if not canvases:
        return _MISSING
    lines = ["| canvas | PSNR, dB | wanted | at joints | inside |", "|---|---|---|---|---|"]
    for name, facts in canvases.items():
        whole, joints, inside = (
            _number(facts.get(key)) for key in ("psnr", "psnr_joints", "psnr_inside")
        )
        lines.append(f"| {name} | {whole} | {_WANTED_PSNR} | {joints} | {inside} |")
    return "\n".join(lines)


def _figures(figures: Mapping[str, object]) -> str:
    if not figures:
        return f"| all | {_MISSING} | | 0 |"
    return "\n".join(
        f"| {name} | {_number(_mapping(facts).get('value'))} | {_WANTED.get(name, '')} "
        f"| {_mapping(facts).get('cases')} |"
        for name, facts in figures.items()
    )


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else _MISSING
