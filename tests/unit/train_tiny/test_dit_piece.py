"""`python -m build_engines.train_tiny dit` and `ref`: pieces that follow one another."""

import json
from pathlib import Path

import pytest

from build_engines.train_tiny import dit_piece
from build_engines.train_tiny.__main__ import main
from build_engines.train_tiny.architecture import new_audio_vae, new_video_vae
from build_engines.train_tiny.dit_learner import LearnerOptions
from build_engines.train_tiny.vae_files import save_audio_vae, save_video_vae

TOY = (
    *("--device", "cpu", "--formats", "64x32x22:1", "--pool", "2", "--batch", "2"),
    *("--max-steps", "2", "--held-out", "2", "--seconds", "600"),
)


@pytest.fixture(scope="module")
def vaes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vaes")
    save_video_vae(new_video_vae(0), [0.0] * 24, [0.5] * 24, folder / "video_vae")
    save_audio_vae(new_audio_vae(0), [0.0] * 32, [0.5] * 32, folder / "audio_vae")
    return folder


def test_the_second_transformer_starts_from_the_first(
    vaes: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = tmp_path / "dit", tmp_path / "ref"
    assert main(["dit", str(first), "--vaes", str(vaes), *TOY]) == 0
    assert "held out: " in capsys.readouterr().out
    resume = ("--vaes", str(vaes), "--resume", str(first), "--seed", "1")
    assert main(["ref", str(second), *resume, *TOY]) == 0
    facts = [json.loads((folder / "training.json").read_text()) for folder in (first, second)]
    assert [fact["partition"] for fact in facts] == ["FL2VA", "Ref2VA"]
    assert [fact["documents"] for fact in facts] == [4, 4]
    assert [fact["compiled"] for fact in facts] == [False, False], "a CPU runs plain operations"
    texts = [(folder / "text_encoder/model.safetensors").read_bytes() for folder in (first, second)]
    assert texts[0] == texts[1], "both partitions share the text encoder"
    weights = [(each / "transformer/model.safetensors").read_bytes() for each in (first, second)]
    assert weights[0] != weights[1]

    third = tmp_path / "alone"
    options: list[LearnerOptions] = []
    monkeypatch.setattr(
        dit_piece, "LearnerOptions", lambda *a: options.append(LearnerOptions(*a)) or options[0]
    )
    told = ("--keep-text", "--guidance", "0.4", "--bouncing", "0.5")
    assert main(["dit", str(third), *resume, *told, *TOY]) == 0
    assert (options[0].guidance, options[0].bouncing) == (0.4, 0.5)
    assert (third / "text_encoder/model.safetensors").read_bytes() == texts[0]
    assert (third / "transformer/model.safetensors").read_bytes() != weights[0]


def test_bad_formats_are_named(vaes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["dit", "x", "--vaes", str(vaes), "--device", "cpu", "--formats", "128x128x124"]
    assert main(words) == 1
    assert "--formats: '128x128x124' is not legal; legal: WxHxF:SHARE" in capsys.readouterr().err
