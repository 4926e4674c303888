"""Pieces of training on toy sizes, and what they leave behind through the ordinary loaders."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from build_engines.evaluation.quality import psnr
from build_engines.train_tiny import pieces
from build_engines.train_tiny import video_learner as video_module
from build_engines.train_tiny.__main__ import main as train_tiny
from build_engines.train_tiny.architecture import new_audio_vae, new_video_vae
from build_engines.train_tiny.audio_learner import AudioLearner
from build_engines.train_tiny.pieces import Piece, Steps, run_piece
from build_engines.train_tiny.sample import render_clip
from build_engines.train_tiny.scenes import draw_scene
from build_engines.train_tiny.vae_files import resume_audio_vae, resume_video_vae
from build_engines.train_tiny.vae_report import AudioRoundTrip, VideoRoundTrip, with_autoencoders
from build_engines.train_tiny.video_learner import VideoLearner, at_objects
from minimax_h3.core.constants import PIXEL_MEAN, PIXEL_STD
from minimax_h3.core.errors import CheckpointError

CPU = torch.device("cpu")
TOY = Piece(seconds=600, max_steps=8, warm_up_steps=2, log_steps=1)


def video_learner(module) -> VideoLearner:
    canvases = ((32, 32), (64, 32))
    return VideoLearner(module, CPU, batch=2, held_out=1, held_out_frames=22, canvases=canvases)


def audio_learner(module) -> AudioLearner:
    return AudioLearner(module, CPU, batch=1, held_out=1, held_out_frames=5, latents=(4, 6))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    """Both autoencoders after eight steps: the folder, and the logs by part."""
    folder = tmp_path_factory.mktemp("trained")
    logs = {}
    for part, learner in (
        ("video_vae", video_learner(new_video_vae(0))),
        ("audio_vae", audio_learner(new_audio_vae(0))),
    ):
        logs[part] = run_piece(learner, TOY, folder / part, use_graphs=False, say=lambda line: None)
    return folder, logs


def test_the_loss_falls(trained) -> None:
    _, logs = trained
    video = [entry["total"] for entry in logs["video_vae"].steps]
    assert np.mean(video[-3:]) < 0.8 * video[0]
    audio = [entry["total"] for entry in logs["audio_vae"].steps]
    assert min(audio) < 0.7 * audio[0]


def test_objects_count_the_same_however_small_they_are() -> None:
    """And what goes wrong far from them does not count here."""
    ground = torch.full((2, 3), 0.5)
    frames = torch.full((2, 3, 1, 64, 64), 0.5)
    frames[0, :, :, 30:34, 30:34] = 1.0  # 16 pixels, 100 with the margin
    frames[1, 0, :, 10:50, 10:50] = 0.0  # seen in one colour only
    wrong = 0.2 * (frames != frames[:, :, :, :1, :1]).any(1, keepdim=True).expand_as(frames).float()
    small = at_objects(wrong[:1], frames[:1], ground[:1])
    torch.testing.assert_close(small, torch.tensor(0.04 * 16 / 100))
    large = at_objects(wrong[1:], frames[1:], ground[1:])
    torch.testing.assert_close(large, torch.tensor(0.04 * 1600 / 46**2))
    torch.testing.assert_close(at_objects(wrong, frames, ground), (small + large) / 2)
    far = torch.zeros_like(frames)
    far[..., :4, :4] = 1.0
    assert at_objects(far, frames, ground) == 0
    assert at_objects(far, torch.full_like(frames, 0.5), ground) == 0


def test_objects_are_a_part_of_the_pictures_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = video_learner(new_video_vae(0))
    kind = learner.kind_of(0)
    scenes, totals = learner.draw(kind, 0), []
    for error in (0.0, 1.0):
        monkeypatch.setattr(video_module, "at_objects", lambda *_, found=error: found)
        torch.manual_seed(0)
        with torch.no_grad():
            totals.append(float(learner.losses(kind, scenes)["total"]))
    assert totals[1] - totals[0] == pytest.approx(0.1, abs=1e-4)


def test_an_untrained_decoder_answers_its_latents() -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        waves = new_audio_vae(0).decode(torch.randn(4, 32, 6)).sample
    answer = (waves - waves.mean(0)).std()
    assert 0.1 < answer < 1
    assert answer > waves.mean(0).std()


def test_curves_are_written(trained) -> None:
    folder, logs = trained
    for part, log in logs.items():
        curves = json.loads((folder / part / "curves.json").read_text())
        assert curves["steps"] == log.steps
        assert curves["evaluations"] == log.evaluations
        with Image.open(folder / part / "curves.png") as picture:
            assert picture.width == 900


def test_both_fit_into_14_megabytes(trained) -> None:
    folder, _ = trained
    sizes = [path.stat().st_size for path in folder.rglob("*.safetensors")]
    assert len(sizes) == 2
    assert sum(sizes) <= 14_000_000


def test_the_loaders_read_what_training_wrote(trained, tmp_path: Path) -> None:
    folder, _ = trained
    manifest = with_autoencoders(folder, tmp_path)
    frames, wave = render_clip(draw_scene(3, 0, canvas=(64, 64), num_frames=39))
    video = new_video_vae(1)
    resume_video_vae(video, folder / "video_vae")
    mean, std = (torch.tensor(x).view(-1, 1, 1, 1) for x in (PIXEL_MEAN, PIXEL_STD))
    with torch.no_grad():
        pixels = (torch.from_numpy(frames).permute(3, 0, 1, 2).float() / 255 - mean) / std
        decoded = video.decode(video.encode(pixels[None]).latent_dist.mode()).sample[0]
    expected = ((decoded * std + mean).clamp(0, 1) * 255).round().byte().permute(1, 2, 3, 0)
    assert psnr(VideoRoundTrip(manifest)(frames), expected.numpy()) > 55
    audio = new_audio_vae(1)
    resume_audio_vae(audio, folder / "audio_vae")
    part = np.ascontiguousarray(wave[:, :8000])
    with torch.no_grad():
        latents = audio.encode(torch.from_numpy(part)[:, None]).latent_dist.mode()
        heard = audio.decode(latents).sample[:, 0].numpy()
    assert np.abs(AudioRoundTrip(manifest)(part) - heard).max() < 1e-4


def test_statistics_are_those_of_latents(trained) -> None:
    folder, _ = trained
    learner = video_learner(new_video_vae(1))
    resume_video_vae(learner.module, folder / "video_vae")
    mean, std = learner._statistics()
    config = json.loads((folder / "video_vae" / "config.json").read_text())
    assert np.allclose(config["latents_mean"], mean, atol=2e-3)
    assert np.allclose(config["latents_std"], std, atol=2e-3)
    assert len(mean) == 24


def test_a_resumed_piece_starts_where_the_last_one_ended(trained) -> None:
    folder, logs = trained
    module = new_video_vae(1)
    resume_video_vae(module, folder / "video_vae")
    figures = video_learner(module).evaluate()
    assert figures["score"] == pytest.approx(logs["video_vae"].evaluations[-1]["score"], abs=0.05)


def test_nothing_to_resume_from_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.safetensors: missing"):
        resume_audio_vae(new_audio_vae(0), tmp_path)


class Line:
    """Fits one number; `broken` makes the loss infinite at a step."""

    def __init__(self, broken: int = -1) -> None:
        self.module = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.module.weight)
        self.broken, self.saved, self.step = broken, [], 0

    def kind_of(self, step: int) -> str:
        self.step = step
        return "only"

    def draw(self, kind: str, step: int):
        return self

    def to(self, device):
        return self

    def losses(self, kind: str, scenes):
        total = (self.module.weight - 1).square().sum()
        return {"total": total / 0 if self.step == self.broken else total}

    def evaluate(self) -> dict[str, float]:
        return {"score": -abs(self.module.weight.item() - 0.02)}  # best on the way to 1

    def save(self, folder: Path) -> None:
        self.saved.append(self.module.weight.item())


def test_the_best_averaged_weights_are_kept(tmp_path: Path) -> None:
    line = Line()
    piece = Piece(seconds=60, max_steps=60, warm_up_steps=1, averaging=0.5, evaluate_seconds=0.0)
    log = run_piece(line, piece, tmp_path, use_graphs=False, say=lambda text: None)
    scores = [entry["score"] for entry in log.evaluations]
    assert -abs(line.saved[-1] - 0.02) == max(scores) > scores[-1]
    assert 1 < len(line.saved) < len(scores)


def test_own_weights_come_back_after_an_evaluation() -> None:
    line = Line()
    steps = Steps(line, Piece(seconds=1), use_graphs=False)
    for step in range(5):
        steps.run(step, 0.1)
    own = line.module.weight.item()
    with steps.averaged_weights():
        assert line.module.weight.item() < 0.5 * own
    assert line.module.weight.item() == own


def test_a_loss_that_is_not_finite_stops_the_piece(tmp_path: Path) -> None:
    piece = Piece(seconds=60, max_steps=9, log_steps=1)
    with pytest.raises(FloatingPointError, match="step 4"):
        run_piece(Line(4), piece, tmp_path, use_graphs=False, say=lambda text: None)


def test_graphs_need_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="graphs: device cpu has none"):
        run_piece(Line(), TOY, tmp_path, use_graphs=True)


def test_the_rate_rises_and_falls() -> None:
    piece = Piece(seconds=10, warm_up_steps=10, peak_rate=1.0)
    rates = [pieces._rate(piece, step, step / 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.1, rel=0.01)
    assert max(rates) > 0.95
    assert rates[-1] == pytest.approx(0.01)
    assert np.all(np.diff(rates[10:]) < 0)


@pytest.mark.parametrize(
    ("part", "new_vae", "new_learner"),
    [
        ("video_vae", new_video_vae, video_learner),
        ("audio_vae", new_audio_vae, audio_learner),
    ],
)
def test_the_decoder_alone_is_trained_and_the_latents_stay(
    trained, tmp_path: Path, part, new_vae, new_learner
) -> None:
    before = trained[0] / part
    module = new_vae(1)
    (resume_video_vae if part == "video_vae" else resume_audio_vae)(module, before)
    learner = new_learner(module)
    learner.keep_latents(before)
    own = {name: value.clone() for name, value in module.state_dict().items()}
    run_piece(learner, TOY, tmp_path / part, use_graphs=False, say=lambda line: None)

    changed = {
        name.split(".")[0]
        for name, value in module.state_dict().items()
        if not torch.equal(value, own[name])
    }
    assert (
        changed
        == {
            "video_vae": {"decoder", "post_quant_conv"},
            "audio_vae": {"decoder", "dec_in_proj"},
        }[part]
    )
    stated = [
        json.loads((folder / "config.json").read_text()) for folder in (before, tmp_path / part)
    ]
    assert stated[0] == stated[1]


def test_decoder_only_needs_something_to_go_on_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny(["audio-vae", str(tmp_path), "--decoder-only", "--device", "cpu"]) == 1
    assert "--decoder-only: needs --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["video-vae", "F", "--batch", "0"],
            "--batch: '0' is not legal; legal: a whole number from 1",
        ),
        (["audio-vae", "F", "--held-out", "-1"], "--held-out: '-1' is not legal"),
        (["video-vae", "F", "--seconds", "nan"], "--seconds: 'nan' is not legal; legal: a number"),
        (["audio-clicks", "F", "--resume", ".", "--seconds", "-5"], "--seconds: '-5'"),
        (["audio-clicks", "F", "--resume", ".", "--held-out", "0"], "--held-out: '0'"),
        (["dit", "F", "--vaes", ".", "--guidance", "1"], "legal: a number from 0 to 0.9"),
        (["dit", "F", "--vaes", ".", "--bouncing", "1.1"], "legal: a number from 0 to 1"),
        (["ref", "F", "--vaes", ".", "--guidance", "x"], "--guidance: 'x' is not legal"),
        (["dit", "F", "--vaes", ".", "--pool", "-1"], "--pool: '-1' is not legal"),
        (["report", ".", "--clips", "1.5"], "--clips: '1.5' is not legal"),
        (["sample", "x.mp4", "--index", "-1"], "--index: '-1' is not legal"),
    ],
)
def test_numbers_out_of_range_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train_tiny(words)
    assert said in capsys.readouterr().err


def test_what_is_no_folder_or_device_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    for words, said in (
        (["audio-vae", str(file)], f"folder: {file} is not legal"),
        (["audio-clicks", "F", "--resume", str(file)], f"--resume: {file} is not legal"),
        (["dit", "F", "--vaes", str(tmp_path / "none")], f"--vaes: {tmp_path / 'none'} is not"),
        (["report", str(file)], f"checkpoint: {file} is not legal; legal: a folder"),
        (["video-vae", "F", "--device", "foo"], "--device: 'foo' is not legal; legal: cpu"),
        (["sample", str(tmp_path / "none" / "x.mp4")], "No such file or directory"),
    ):
        assert train_tiny(words) == 1
        assert said in capsys.readouterr().err
