"""Figures of one clip, of a whole set, and of two sets made from the same prompts and seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from build_engines.evaluation.cases import Case
from build_engines.evaluation.library import Clip
from build_engines.evaluation.quality import psnr
from build_engines.evaluation.report import ClipFacts, judge, measure_clip, reference_look
from build_engines.evaluation.tones import semitones
from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.captions import parse_caption
from build_engines.train_tiny.documents import CLIP, KEYFRAME_TASKS, PICTURE, VOICE
from build_engines.train_tiny.picture import render_frames
from build_engines.train_tiny.references import PITCH_RANGE_HZ
from build_engines.train_tiny.scenes import to_tensors

MISSED_CLICK_MS = 1000.0  # of a bounce without a click
_SEMITONE = 1.0
_RESAMPLES, _SEED = 4000, 0
_BEST_DB = 99.0  # of equal pictures, whose PSNR has no end

Values = dict[str, list[float]]
"""Figure -> values of a clip; shares are 0 or 1, several values are several bounces or objects."""


def clip_values(case: Case, clip: Clip) -> Values:
    """Measure a clip against its case."""
    facts = measure_clip(clip.frames, clip.wave)
    values: Values = {}
    if case.task in KEYFRAME_TASKS:
        verdicts = judge(facts, parse_caption(case.prompt))
        values |= {name: [float(right)] for name, right in verdicts.items()}
        values["shape and colour"] = [float(verdicts["shape"] and verdicts["colour"])]
        values |= _sound(case, facts)
    if case.task in KEYFRAME_TASKS and case.media:
        pairs = zip(case.kind.conditions, case.media, strict=True)
        values["keyframe PSNR, dB"] = [
            min(psnr(clip.frames[condition.frame_index], medium.frames[0]), _BEST_DB)
            for condition, medium in pairs
            if medium.frames is not None
        ]
    if case.task in (PICTURE, VOICE) and case.media[0].frames is not None:
        look = reference_look(facts, case.media[0].frames[0])
        if case.scene.objects[case.place].motion == words.GROW:
            look.pop("size")  # it has another size in every frame
        values["look kept"] = [float(all(look.values()))]
    if case.task == VOICE:
        values["pitch kept"] = [_pitch_kept(case, facts)]
    if case.task == CLIP:
        form = case.kind.format
        truth = render_frames(to_tensors([case.scene]), form.width, form.height, 1)[0, :, 0]
        wanted = (truth.permute(1, 2, 0) * 255).round().byte().numpy()
        values["continued PSNR, dB"] = [min(psnr(clip.frames[0], wanted), _BEST_DB)]
    return {_group(case, name): found for name, found in values.items() if found}


def _group(case: Case, name: str) -> str:
    """Figures of prompts, of keyframes and of each reference are told apart."""
    if case.task not in KEYFRAME_TASKS:
        return f"{case.task}: {name}"
    return f"keyframes: {name}" if case.media else name


def _sound(case: Case, facts: ClipFacts) -> Values:
    pans = [seen.pan_correlation for seen in facts.objects if seen.pan_correlation is not None]
    offsets: list[float] = []
    if any(thing.motion == words.BOUNCE for thing in case.scene.objects):
        for seen in facts.objects:
            offsets += [
                MISSED_CLICK_MS if offset is None else min(abs(offset) * 1000, MISSED_CLICK_MS)
                for offset in seen.click_offsets
            ]
    return {"pan correlation": pans, "click offset, ms": offsets}


def _pitch_kept(case: Case, facts: ClipFacts) -> float:
    wanted = case.scene.objects[case.place].pitch_hz
    assert PITCH_RANGE_HZ[0] <= wanted <= PITCH_RANGE_HZ[1]
    heard = [seen.pitch_hz for seen in facts.objects if seen.pitch_hz is not None]
    return float(any(abs(semitones(pitch, wanted)) <= _SEMITONE for pitch in heard))


def summary(measured: Sequence[Values]) -> dict[str, dict[str, float]]:
    """Mean of each figure over all its values; of clicks the median and the ninth tenth.

    Returns:
        Figure -> `value` and `cases`.
    """
    pooled: dict[str, list[float]] = {}
    for values in measured:
        for name, found in values.items():
            pooled.setdefault(name, []).extend(found)
    figures: dict[str, dict[str, float]] = {}
    for name, found in pooled.items():
        if name.endswith("click offset, ms"):
            for rank, share in (("median", 0.5), ("p90", 0.9)):
                value = float(np.quantile(found, share))
                figures[f"{name}, {rank}"] = {"value": value, "cases": len(found)}
        else:
            figures[name] = {"value": float(np.mean(found)), "cases": len(found)}
    return figures


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference of a figure, second minus first, over pairs of clips.

    Attributes:
        mean: of the pairs.
        low, high: ends of the 95 % confidence interval, by resampling the pairs.
        pairs: clips that have the figure in both sets.
    """

    mean: float
    low: float
    high: float
    pairs: int


def paired_differences(first: Sequence[Values], second: Sequence[Values]) -> dict[str, Difference]:
    """Compare two sets, case by case.

    Args:
        first: values of each case.
        second: values of the same cases in the same order.

    Raises:
        ValueError: sets of different sizes.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} cases cannot be paired")
    by_name: dict[str, list[float]] = {}
    for one, other in zip(first, second, strict=True):
        for name in one.keys() & other.keys():
            step = float(np.mean(other[name]) - np.mean(one[name]))
            by_name.setdefault(name, []).append(step)
    return {name: _interval(np.array(steps)) for name, steps in sorted(by_name.items())}


def _interval(steps: NDArray[np.float64]) -> Difference:
    rng = np.random.default_rng(_SEED)
    drawn = rng.integers(len(steps), size=(_RESAMPLES, len(steps)))
    low, high = np.quantile(steps[drawn].mean(1), (0.025, 0.975))
    return Difference(float(steps.mean()), float(low), float(high), len(steps))


def table(figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Lines of a table of figures."""
    return [
        f"{name:<34} {facts['value']:>9.4g}   n {facts['cases']:.0f}"
        for name, facts in figures.items()
    ]


def difference_table(differences: Mapping[str, Difference]) -> list[str]:
    """Lines of a table of differences; a star marks an interval without 0."""
    return [
        f"{name:<34} {each.mean:>+9.4g}   [{each.low:+.4g}, {each.high:+.4g}]"
        f"{' *' if each.low > 0 or each.high < 0 else ''}   n {each.pairs}"
        for name, each in differences.items()
    ]
