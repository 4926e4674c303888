"""How often the tools are right, on clips whose truth is known, after H.264 and AAC."""

import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from build_engines.evaluation.clip_files import read_clip
from build_engines.evaluation.quality import psnr
from build_engines.evaluation.report import ObjectFacts, judge, measure_clip, reference_look
from build_engines.evaluation.tones import semitones
from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.captions import caption, parse_caption
from build_engines.train_tiny.references import PICTURE, draw_reference, reference_frames
from build_engines.train_tiny.sample import encode_clip, render_clip
from build_engines.train_tiny.scenes import Scene, SceneObject, draw_scene

_SEED = 11
_QUARTER = 0.25  # semitones
_PAN_ERROR = 0.05  # widths
_PAN_CORRELATION = 0.98
_BOUNCE_S = 0.01
_CLICK_S = 0.01
_END_S = 0.25  # bounces closer to an end of the clip are not looked for
_KEYFRAME_DB = 30.0


def check_clip(index: int) -> dict[str, bool]:
    """Render scene `index`, encode and decode it, measure it, compare with what was drawn."""
    scene = draw_scene(_SEED, index)
    clip = render_clip(scene)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        path.write_bytes(encode_clip(clip))
        frames, wave = read_clip(path)
    facts = measure_clip(frames, wave)
    verdicts = judge(facts, parse_caption(caption(scene, plain=True)))
    verdicts["keyframe"] = all(psnr(frames[i], clip[0][i]) > _KEYFRAME_DB for i in (0, -1))
    if not verdicts["objects"]:
        return verdicts
    pairs = list(zip(facts.objects, scene.objects, strict=True))
    verdicts["pitch"] = all(_pitch_is_right(seen, thing) for seen, thing in pairs)
    verdicts["pan"] = all(_pan_is_right(seen) for seen, _ in pairs)
    bouncing = [pair for pair in pairs if pair[1].motion == words.BOUNCE]
    if bouncing:
        verdicts["bounce times"] = all(_bounces_are_right(*pair, scene) for pair in bouncing)
        verdicts["click offsets"] = all(_clicks_are_right(seen) for seen, _ in bouncing)
    return verdicts


def check_reference(index: int) -> dict[str, bool]:
    """Whether the object of a reference picture is recognised in the clip made after it."""
    reference = draw_reference(_SEED, index, PICTURE, words.CANVASES[0], words.LENGTHS[0])
    frames, wave = render_clip(reference.target)
    picture = (reference_frames(reference)[:, 0].permute(1, 2, 0) * 255).round().byte().numpy()
    look = reference_look(measure_clip(frames, wave), picture)
    thing = reference.target.objects[reference.place]
    if thing.motion == words.GROW:
        look.pop("size")  # it has another size in every frame
    return {f"reference {name}": right for name, right in look.items()}


def shares(verdicts: Iterable[dict[str, bool]]) -> dict[str, dict[str, float]]:
    """Number of cases and share of right ones, by property."""
    cases, right = Counter[str](), Counter[str]()
    for verdict in verdicts:
        cases.update(verdict.keys())
        right.update(name for name, is_right in verdict.items() if is_right)
    return {name: {"cases": cases[name], "right": right[name] / cases[name]} for name in cases}


def _pitch_is_right(seen: ObjectFacts, thing: SceneObject) -> bool:
    return seen.pitch_hz is not None and abs(semitones(seen.pitch_hz, thing.pitch_hz)) < _QUARTER


def _pan_is_right(seen: ObjectFacts) -> bool:
    if seen.pan_error is None or seen.pan_error > _PAN_ERROR:
        return False
    return seen.pan_correlation is None or seen.pan_correlation > _PAN_CORRELATION


def _bounces_are_right(seen: ObjectFacts, thing: SceneObject, scene: Scene) -> bool:
    times = thing.bounce_times(scene.seconds)
    inner = [time for time in times if _END_S < time < scene.seconds - _END_S]
    missed = [time for time in inner if not _near(time, seen.bounces)]
    return not missed and all(_near(time, times) for time in seen.bounces)


def _near(time: float, times: list[float]) -> bool:
    return bool(np.min(np.abs(np.array([*times, np.inf]) - time)) < _BOUNCE_S)


def _clicks_are_right(seen: ObjectFacts) -> bool:
    return all(offset is not None and abs(offset) < _CLICK_S for offset in seen.click_offsets)
