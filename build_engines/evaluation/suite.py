"""The held-out set on a checkpoint: made by the library, measured, compared with a server."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from build_engines.evaluation.cases import CONDITIONED, PROMPTS, Case, held_out_cases
from build_engines.evaluation.contact_sheet import ContactSheet
from build_engines.evaluation.library import Clip, Library, Profile
from build_engines.evaluation.quality import psnr
from build_engines.evaluation.suite_figures import (
    Values,
    clip_values,
    difference_table,
    paired_differences,
    summary,
    table,
)
from build_engines.train_tiny.documents import TEXT, Format
from h3_client.client import H3Client
from minimax_h3.core.errors import H3Error

SERVED_PROMPTS = 12
_REPORT, _SHEET = "eval.json", "eval.png"


@dataclass(frozen=True, slots=True)
class Suite:
    """What is evaluated.

    Attributes:
        checkpoint: folder.
        output: folder for `eval.json` and `eval.png`.
        profile: how clips are made.
        against: `KEY=VALUE,...`: a second profile for the same cases, or empty.
        url: a running server that must make the same clips, gRPC host:port, or empty.
        served: prompts that the server makes.
        prompts: cases without conditions.
        conditioned: cases of each other task.
        sizes: of the clips, in turn; empty for those of the held-out set.
    """

    checkpoint: Path
    output: Path
    profile: Profile = field(default_factory=Profile)
    against: str = ""
    url: str = ""
    served: int = SERVED_PROMPTS
    prompts: int = PROMPTS
    conditioned: int = CONDITIONED
    sizes: tuple[Format, ...] = ()


@dataclass(slots=True)
class _Made:
    """A measured clip of one case."""

    case: Case
    values: Values
    digest: str
    seconds: float


def run_suite(suite: Suite, say: Callable[[str], None] = print) -> bool:
    """Make, measure and report all cases.

    Returns:
        Whether every clip of the server equals the library's; true without a server.

    Raises:
        H3Error: a component does not load, or the server refuses.
    """
    suite.output.mkdir(parents=True, exist_ok=True)
    library = Library(suite.checkpoint, suite.profile)
    other = None
    if suite.against:
        other = Library(suite.checkpoint, suite.profile.varied(suite.against))
    cases = held_out_cases(
        suite.prompts,
        suite.conditioned,
        references=library.has_references,
        sizes=suite.sizes or None,
    )
    sheet, made, varied, alike = ContactSheet(), list[_Made](), list[_Made](), list[float]()
    for case in cases:
        entry, clip = _make(library, case)
        made.append(entry)
        sheet.add(f"{case.name}: {case.prompt}", clip)
        say(_line(entry))
        if other is not None:
            second, changed = _make(other, case)
            varied.append(second)
            alike.append(min(psnr(changed.frames, clip.frames), 99.0))
    report = _report(suite, made)
    if other is not None:
        report["against"] = _against(suite, made, varied, alike)
    same = True
    if suite.url:
        report["served"] = served = _served(suite, made, say)
        same = all(bool(entry["equal"]) for entry in served)
    sheet.write(suite.output / _SHEET)
    (suite.output / _REPORT).write_text(json.dumps(report, indent=1) + "\n")
    _print(report, made, varied, say)
    return same


def _make(library: Library, case: Case) -> tuple[_Made, Clip]:
    began = time.perf_counter()
    clip = library.generate(case)
    seconds = time.perf_counter() - began
    return _Made(case, clip_values(case, clip), clip.digest, seconds), clip


def _line(entry: _Made) -> str:
    wrong = [name for name, found in entry.values.items() if 0.0 in found]
    said = f"not right: {', '.join(wrong)}" if wrong else "all right"
    return f"{entry.case.name}, {entry.seconds:.1f} s: {said}"


def _report(suite: Suite, made: Sequence[_Made]) -> dict[str, object]:
    return {
        "checkpoint": suite.checkpoint.name,
        "points": suite.profile.points,
        "profile": asdict(suite.profile),
        "figures": summary([entry.values for entry in made]),
        "median_seconds": float(np.median([entry.seconds for entry in made])),
        "cases": [
            {
                "name": entry.case.name,
                "prompt": entry.case.prompt,
                "size": entry.case.kind.format.name,
                "seed": entry.case.seed,
                "digest": entry.digest,
                "seconds": round(entry.seconds, 3),
                "values": entry.values,
            }
            for entry in made
        ],
    }


def _against(
    suite: Suite, made: Sequence[_Made], varied: Sequence[_Made], alike: Sequence[float]
) -> dict[str, object]:
    first, second = ([entry.values for entry in entries] for entries in (made, varied))
    differences = paired_differences(first, second)
    return {
        "profile": asdict(suite.profile.varied(suite.against)),
        "figures": summary(second),
        "differences": {name: asdict(each) for name, each in differences.items()},
        "equal_clips": sum(
            one.digest == other.digest for one, other in zip(made, varied, strict=True)
        ),
        "median_psnr_db": float(np.median(alike)),
        "median_seconds": float(np.median([entry.seconds for entry in varied])),
    }


def _served(
    suite: Suite, made: Sequence[_Made], say: Callable[[str], None]
) -> list[dict[str, object]]:
    """Make the first prompts at the server too and compare pixels and samples."""
    entries: list[dict[str, object]] = []
    with H3Client(suite.url) as client:
        for entry in [each for each in made if each.case.task == TEXT][: suite.served]:
            case, form = entry.case, entry.case.kind.format
            result = client.generate(
                case.prompt,
                frames=True,
                audio=True,
                width=form.width,
                height=form.height,
                num_frames=form.num_frames,
                num_inference_steps=suite.profile.points,
                seed=case.seed,
            )
            if result.frames is None or result.audio is None:
                raise H3Error(f"{case.name}: the server's answer lacks pixels or samples")
            digest = Clip(result.frames[0], result.audio[0]).digest
            equal = digest == entry.digest
            say(f"{case.name} at the server: {'equal' if equal else 'DIFFERENT'}")
            entries.append({"name": case.name, "digest": digest, "equal": equal})
    return entries


def _print(
    report: dict[str, object],
    made: Sequence[_Made],
    varied: Sequence[_Made],
    say: Callable[[str], None],
) -> None:
    say("")
    for line in table(summary([entry.values for entry in made])):
        say(line)
    if varied:
        say("\nagainst: mean difference and its 95 % interval over pairs")
        first, second = ([entry.values for entry in entries] for entries in (made, varied))
        for line in difference_table(paired_differences(first, second)):
            say(line)
    say(f"{len(made)} clips, {report['median_seconds']:.2f} s each at the median")
