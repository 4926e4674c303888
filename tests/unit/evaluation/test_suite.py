"""`h3 eval --checkpoint`: the held-out set on an untrained checkpoint, and comparisons of sets."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from build_engines.evaluation.cases import held_out_cases
from build_engines.evaluation.library import Clip, Profile
from build_engines.evaluation.suite_figures import (
    MISSED_CLICK_MS,
    clip_values,
    paired_differences,
    summary,
)
from build_engines.h3_tiny import assemble
from build_engines.train_tiny.architecture import new_audio_vae, new_video_vae
from build_engines.train_tiny.dit_learner import TextAndTransformer
from build_engines.train_tiny.documents import Format
from build_engines.train_tiny.sample import render_clip
from build_engines.train_tiny.vae_files import save_audio_vae, save_video_vae
from h3_client.cli import main
from minimax_h3.core.errors import InvalidRequestError

SMALL = ("--sizes", "64x32x22", "--points", "3")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    save_video_vae(new_video_vae(0), [0.0] * 24, [0.5] * 24, folder / "video_vae")
    save_audio_vae(new_audio_vae(0), [0.0] * 32, [0.5] * 32, folder / "audio_vae")
    networks = TextAndTransformer(4)
    torch.manual_seed(0)
    with torch.no_grad():  # closed gates and heads would make noise of any number of points
        for name, parameter in networks.transformer.named_parameters():
            if "adaln" in name or "_out." in name:
                parameter.normal_(std=0.1)
    networks.save(folder)
    (folder / "transformer_ref").symlink_to("transformer")
    return assemble(folder, tmp_path_factory.mktemp("out") / "h3-tiny")


@pytest.mark.whole_soak
def test_every_task_is_made_and_reported(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", "--checkpoint", str(checkpoint), "--output", str(tmp_path), *SMALL]
    words += ["--prompts", "2", "--conditioned", "1"]
    assert main(words) == 0
    report = json.loads((tmp_path / "eval.json").read_text())
    names = [case["name"] for case in report["cases"]]
    assert names == [
        *("text 0", "text 1", "first 0", "last 0", "both 0", "picture 0", "voice 0", "clip 0"),
    ]
    assert report["points"] == 3
    assert {"shape", "pitch", "keyframes: keyframe PSNR, dB"} < set(report["figures"])
    assert {"picture: look kept", "voice: pitch kept"} < set(report["figures"])
    assert "clip: continued PSNR, dB" in report["figures"]
    with Image.open(tmp_path / "eval.png") as sheet:
        assert sheet.height > 8 * 72
    told = capsys.readouterr().out
    assert "text 1, " in told
    assert "8 clips, " in told


def test_another_profile_is_compared_pair_by_pair(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", "--checkpoint", str(checkpoint), "--output", str(tmp_path), *SMALL]
    words += ["--prompts", "2", "--conditioned", "0", "--against", "points=2"]
    assert main(words) == 0
    report = json.loads((tmp_path / "eval.json").read_text())
    against = report["against"]
    assert against["profile"]["points"] == 2
    assert against["equal_clips"] == 0
    assert against["differences"]["shape"]["pairs"] == 2
    assert set(against["differences"]) <= set(report["figures"]) | {"click offset, ms"}
    assert "against: mean difference" in capsys.readouterr().out


@pytest.mark.whole_soak
def test_the_same_profile_makes_the_same_clips(checkpoint: Path, tmp_path: Path) -> None:
    words = ["eval", "--checkpoint", str(checkpoint), "--output", str(tmp_path), *SMALL]
    words += ["--prompts", "1", "--conditioned", "0", "--against", "dtype=fp32"]
    assert main([*words, "--profile", "dtype=fp32"]) == 0
    against = json.loads((tmp_path / "eval.json").read_text())["against"]
    assert against["equal_clips"] == 1
    assert all(each["mean"] == 0 for each in against["differences"].values())


def test_the_truth_itself_is_right(whole_soak: bool) -> None:
    """Rendered scenes in place of generated clips score as the measuring tools do."""
    values = []
    for case in held_out_cases(4, 2 if whole_soak else 1):
        frames, wave = render_clip(case.scene)
        values.append(clip_values(case, Clip(frames, wave)))
    figures = summary(values)
    for name in ("shape and colour", "motion", "pitch", "picture: look kept", "voice: pitch kept"):
        assert figures[name]["value"] == 1, name
    assert figures["keyframes: keyframe PSNR, dB"]["value"] == pytest.approx(99)
    assert figures["clip: continued PSNR, dB"]["value"] == pytest.approx(99)
    assert figures["pan correlation"]["value"] > 0.95
    offsets = [name for name in figures if "click offset" in name and "p90" in name]
    assert all(figures[name]["value"] < 42 for name in offsets)


def test_the_set_is_fixed_and_held_out() -> None:
    small = [Format(64, 32, 22)]
    first, again = (list(held_out_cases(3, 1, sizes=small)) for _ in range(2))
    assert [case.prompt for case in first] == [case.prompt for case in again]
    assert np.array_equal(first[3].media[0].frames, again[3].media[0].frames)
    assert len({case.seed for case in first[:3]}) == 3
    assert {case.kind.format.name for case in first} == {"64x32x22"}
    by_default = {case.kind.format.name for case in held_out_cases(4, 0)}
    assert by_default == {"128x128x124", "192x128x124"}
    assert len(list(held_out_cases(10, 1, sizes=small))) == 16


def test_differences_are_of_pairs() -> None:
    rng = np.random.default_rng(0)
    first = [{"a": [float(value)], "only": [1.0]} for value in rng.normal(size=200)]
    second = [{"a": [values["a"][0] + 0.1 + 0.01 * rng.normal()]} for values in first]
    found = paired_differences(first, second)["a"]
    assert found.low < 0.1 < found.high
    assert found.high - found.low < 0.01, "pairs cancel what the cases differ by"
    assert found.pairs == 200
    assert "only" not in paired_differences(first, second)
    with pytest.raises(ValueError, match="200 and 1 cases"):
        paired_differences(first, second[:1])


def test_clicks_have_a_median_and_a_tail() -> None:
    found = summary(
        [{"click offset, ms": [1.0, 2.0, 3.0]}, {"click offset, ms": [MISSED_CLICK_MS]}]
    )
    assert found["click offset, ms, median"] == {"value": 2.5, "cases": 4}
    assert found["click offset, ms, p90"]["value"] > 500


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give one of the two"),
        (["--checkpoint", "nowhere", "--points", "1"], "--points: 1 is not legal"),
        (["--checkpoint", "nowhere", "--profile", "speed=9"], "'speed=9' is not legal"),
        (["--checkpoint", "nowhere", "--sizes", "64x33x22"], "'64x33x22' is not legal"),
        (["--checkpoint", "nowhere"], "nowhere"),
    ],
)
def test_bad_words_are_named(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["eval", *words]) == 1
    assert message in capsys.readouterr().err


def test_profiles() -> None:
    assert Profile(points=9).varied("points=5,dtype=bf16") == Profile(points=5, dtype="bf16")
    with pytest.raises(InvalidRequestError, match="points"):
        Profile().varied("points=few")
