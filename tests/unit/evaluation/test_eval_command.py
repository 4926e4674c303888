"""`h3 eval` on files."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from build_engines.evaluation import command
from build_engines.evaluation.quality import psnr, snr
from build_engines.evaluation.report import ClipFacts, ObjectFacts
from build_engines.train_tiny.__main__ import main as train_tiny
from build_engines.train_tiny.captions import caption
from build_engines.train_tiny.sample import render_clip
from build_engines.train_tiny.scenes import draw_scene
from h3_client.cli import main


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    assert train_tiny(["sample", str(path), "--seed", "1", "--index", "3"]) == 0
    return path


def test_a_right_caption_passes_and_a_wrong_one_does_not(
    clip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = caption(draw_scene(1, 3), plain=True)
    assert main(["eval", str(clip), "--caption", text]) == 0
    assert "right: shape" in capsys.readouterr().out
    assert main(["eval", str(clip), "--caption", "a red star and a green cross"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_json_with_keyframes_and_reference(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = draw_scene(1, 3)
    frames, _ = render_clip(scene)
    picture = tmp_path / "first.png"
    Image.fromarray(frames[0]).save(picture)
    options = ["--first", str(picture), "--reference", str(picture), "--original", str(clip)]
    options.append("--json")
    assert main(["eval", str(clip), *options]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["first_psnr_db"] > 30
    assert facts["psnr_db"] == facts["snr_db"] == float("inf")
    assert facts["reference"]["colour"]
    assert len(facts["objects"]) == len(scene.objects)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{clip}", "--caption", "a fox"], "--caption: caption 'a fox' is not legal"),
        (["{clip}", "--caption", "a red circle spins"], "nothing would be judged of 'spins'"),
        (
            ["{clip}", "--first", "{small}"],
            "--first: 8x8 is not legal; legal: the size of the clip",
        ),
        (["{small}"], "small.png"),
        (["{missing}"], "missing.mp4"),
    ],
)
def test_bad_input_is_named(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    small = tmp_path / "small.png"
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(small)
    names = {"clip": clip, "small": small, "missing": tmp_path / "missing.mp4"}
    assert main(["eval", *(word.format(**names) for word in words)]) == 1
    assert message in capsys.readouterr().err


def test_decibels() -> None:
    dark = np.zeros((2, 4, 4, 3), dtype=np.uint8)
    assert psnr(dark, dark) == float("inf")
    assert psnr(dark + 255, dark) == 0
    assert psnr(dark + 51, dark) == pytest.approx(20 * np.log10(5))
    wave = np.ones((2, 100), dtype=np.float32)
    assert snr(wave * 1.1, wave) == pytest.approx(20, abs=1e-4)
    with pytest.raises(ValueError, match="silent"):
        snr(wave, wave * 0)
    with pytest.raises(ValueError, match="shape"):
        psnr(dark[:1], dark)


def test_a_click_of_another_bounce_is_none_of_this_one() -> None:
    seen = ObjectFacts("red", "circle", 16.0, "medium", "bounce", "left", 0.5)
    seen.bounces, seen.click_offsets = [0.5, 1.0, 1.5], [0.02, -0.5, None]
    lines = command._lines(ClipFacts("blue", [seen], [0.52]), {}, {})
    assert "  3 bounces, 1 with a click, median 20.0 ms off" in lines
