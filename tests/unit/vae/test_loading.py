"""Both autoencoders from both checkpoint layouts, against diffusers' own loader."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio
from diffusers.models.attention_dispatch import attention_backend
from diffusers.modular_pipelines.minimax_h3.encoders import encode_vae_condition
from safetensors.torch import load_file, save_file

from minimax_h3.core.constants import PIXEL_MEAN, PIXEL_STD
from minimax_h3.core.errors import CheckpointError
from minimax_h3.packing.patchify import audio_to_rows
from minimax_h3.vae.loading import (
    load_audio_encoder,
    load_audio_vae,
    load_video_encoder,
    load_video_vae,
)
from minimax_h3.weights.manifest import identify

CPU = torch.device("cpu")
FP32_ORACLE = 1e-6
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.nn.utils.weight_norm. is deprecated:FutureWarning"
)


@pytest.fixture(scope="module")
def video_latents() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((24, 12, 4, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def audio_latents() -> np.ndarray:
    return np.random.default_rng(2).standard_normal((2, 32, 20)).astype(np.float32)


def channels(values, rank: int) -> torch.Tensor:
    return torch.tensor(values).view(1, -1, *[1] * rank)


def oracle_vae(kind: type, folder: Path):
    """The diffusers model of a diffusers-layout folder (its own loader needs accelerate)."""
    model = kind.from_config(json.loads((folder / "config.json").read_text()))
    model.load_state_dict(load_file(folder / "diffusion_pytorch_model.safetensors"))
    return model.eval()


def test_video_decoder_equals_diffusers_from_both_layouts(
    tiny_checkpoint, tiny_diffusers_checkpoint, video_latents
):
    oracle = oracle_vae(AutoencoderKLMiniMaxH3, tiny_diffusers_checkpoint / "vae")
    mean, std = channels(oracle.config.latents_mean, 3), channels(oracle.config.latents_std, 3)
    with torch.inference_mode():
        video = oracle.decode(torch.from_numpy(video_latents)[None] * std + mean).sample
        pixel_mean = channels((0.485, 0.456, 0.406), 3)
        pixels = video * channels((0.229, 0.224, 0.225), 3) + pixel_mean
    expected = (pixels.clamp(0, 1)[0].permute(1, 2, 3, 0).numpy() * 255).round().astype(np.int16)
    for checkpoint in (tiny_checkpoint, tiny_diffusers_checkpoint):
        decoder = load_video_vae(identify(checkpoint, "fl2va"), CPU, torch.float32)
        frames = np.concatenate(list(decoder.decode_clips(video_latents)))
        difference = np.abs(frames.astype(np.int16) - expected)
        assert difference.max() <= 1
        assert (difference > 0).mean() <= 1e-3
    assert expected.std() > 20


def test_audio_decoder_equals_diffusers_from_both_layouts(
    tiny_checkpoint, tiny_diffusers_checkpoint, audio_latents
):
    oracle = oracle_vae(AutoencoderKLMiniMaxH3Audio, tiny_diffusers_checkpoint / "audio_vae")
    mean, std = channels(oracle.config.latents_mean, 1), channels(oracle.config.latents_std, 1)
    with torch.inference_mode():
        wave = oracle.decode(torch.from_numpy(audio_latents) * std + mean).sample[:, 0].numpy()
    for checkpoint in (tiny_checkpoint, tiny_diffusers_checkpoint):
        decoder = load_audio_vae(identify(checkpoint, "fl2va"), CPU)
        assert np.abs(decoder.decode(audio_latents) - wave).max() <= FP32_ORACLE
    assert wave.std() > 1e-2


@pytest.mark.parametrize(("frames", "height", "width"), [(1, 32, 32), (1, 96, 64), (22, 64, 96)])
def test_video_encoder_equals_diffusers_from_both_layouts(
    tiny_checkpoint, tiny_diffusers_checkpoint, frames, height, width
):
    given = random_frames(frames, height, width)
    expected = oracle_condition(tiny_diffusers_checkpoint, given)
    for checkpoint in (tiny_checkpoint, tiny_diffusers_checkpoint):
        encoder = load_video_encoder(identify(checkpoint, "fl2va"), CPU)
        assert torch.equal(encoder.encode(given), expected)
    assert expected.std() > 0.1


@pytest.mark.parametrize(
    ("height", "width"),
    [(320, 272), pytest.param(768, 1344, marks=pytest.mark.whole_soak)],
    ids=("four tiles", "full canvas"),
)
def test_tiles_are_encoded_as_by_diffusers(
    tiny_checkpoint, tiny_diffusers_checkpoint, height, width
):
    given = random_frames(1, height, width)
    encoder = load_video_encoder(identify(tiny_checkpoint, "fl2va"), CPU)
    assert torch.equal(encoder.encode(given), oracle_condition(tiny_diffusers_checkpoint, given))


def random_frames(frames: int, height: int, width: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    return rng.integers(0, 256, (frames, height, width, 3), dtype=np.uint8)


def oracle_condition(checkpoint: Path, frames: np.ndarray) -> torch.Tensor:
    """Condition latents by diffusers' own recipe."""
    oracle = oracle_vae(AutoencoderKLMiniMaxH3, checkpoint / "vae")
    pixels = torch.from_numpy(frames).permute(3, 0, 1, 2)[None]
    with torch.no_grad():
        return encode_vae_condition(oracle, pixels, PIXEL_MEAN, PIXEL_STD)[0]


def test_audio_encoder_equals_diffusers_from_both_layouts(
    tiny_checkpoint, tiny_diffusers_checkpoint
):
    oracle = oracle_vae(AutoencoderKLMiniMaxH3Audio, tiny_diffusers_checkpoint / "audio_vae")
    wave = np.random.default_rng(4).uniform(-1, 1, (2, 20_001)).astype(np.float32)
    with torch.no_grad():
        latents = oracle.encode(torch.from_numpy(wave)[:, None]).latent_dist.mode()
    mean, std = channels(oracle.config.latents_mean, 1), channels(oracle.config.latents_std, 1)
    expected = ((latents - mean) / std).transpose(1, 2).reshape(-1, 32)
    for checkpoint in (tiny_checkpoint, tiny_diffusers_checkpoint):
        encoder = load_audio_encoder(identify(checkpoint, "fl2va"), CPU)
        assert torch.equal(audio_to_rows(encoder.encode(wave)), expected)
        with attention_backend("flex"):
            assert torch.equal(audio_to_rows(encoder.encode(wave)), expected)
    assert expected.std() > 1e-2


def test_only_the_asked_halves_are_in_memory(tiny_checkpoint):
    manifest = identify(tiny_checkpoint, "fl2va")
    video = load_video_vae(manifest, CPU, torch.float32)
    assert not any(tensor.is_meta for tensor in video._decoder.parameters())
    audio = load_audio_vae(manifest, CPU)
    parts = (audio._decode._dec_in_proj, audio._decode._conv_pre, *audio._decode._ups)
    assert not any(tensor.is_meta for part in parts for tensor in part.parameters())


def test_the_decode_dtype_on_a_cpu_is_fp32_and_the_log_says_so(tiny_checkpoint, caplog):
    with caplog.at_level(logging.INFO):
        decoder = load_video_vae(identify(tiny_checkpoint, "fl2va"), CPU, torch.bfloat16)
    assert {value.dtype for value in decoder._decoder.parameters()} == {torch.float32}
    assert "bfloat16 was asked for" in caplog.text


def test_bf16_matrices_keep_the_fp32_parts_that_diffusers_keeps(
    tiny_checkpoint, video_latents, monkeypatch
):
    kept = set(AutoencoderKLMiniMaxH3._keep_in_fp32_modules)
    manifest = identify(tiny_checkpoint, "fl2va")
    exact = load_video_vae(manifest, CPU, torch.float32)
    # The rule of a GPU, on the device at hand.
    monkeypatch.setattr("minimax_h3.vae.loading._decode_dtype", lambda device, dtype: dtype)
    halved = load_video_vae(manifest, CPU, torch.bfloat16)
    for name, value in halved._decoder.named_parameters():
        in_fp32 = bool(kept.intersection(name.split(".")))
        assert value.dtype == (torch.float32 if in_fp32 else torch.bfloat16), name
    assert halved._post_quant_conv.weight.dtype == torch.bfloat16
    near, far = (np.concatenate(list(d.decode_clips(video_latents))) for d in (exact, halved))
    error = np.abs(near.astype(np.int16) - far)
    assert 0 < error.mean() < 2, "bf16 is another rounding, not another picture"


def test_the_attention_choice_of_the_process_does_not_reach_the_picture(
    tiny_checkpoint, video_latents
):
    decoder = load_video_vae(identify(tiny_checkpoint, "fl2va"), CPU, torch.float32)
    expected = np.concatenate(list(decoder.decode_clips(video_latents)))
    with attention_backend("flex"):
        frames = np.concatenate(list(decoder.decode_clips(video_latents)))
    assert np.array_equal(frames, expected)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda tensors: tensors.pop("decoder.proj_out.bias"), r"1 missing: decoder\.proj_out"),
        (lambda tensors: tensors.pop("encoder.conv_in.weight"), r"1 missing: encoder\.conv_in"),
        (lambda tensors: tensors.update(stray=torch.zeros(1)), "1 extra: stray"),
        (
            lambda tensors: tensors.update({"decoder.norm_out.bias": torch.zeros(3)}),
            r"misshaped: decoder\.norm_out\.bias \[3\]",
        ),
        (
            lambda tensors: tensors["decoder.mask_token"].fill_(1.0),
            "decoder.mask_token is not what the configuration implies",
        ),
    ],
)
def test_a_damaged_video_vae_is_refused_by_name(tiny_checkpoint, tmp_path, damage, message):
    copy = tmp_path / "FL2VA"
    shutil.copytree(tiny_checkpoint / "FL2VA", copy)
    path = copy / "video_vae" / "source" / "model.safetensors"
    tensors = load_file(path)
    damage(tensors)
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=message):
        load_video_vae(identify(copy, "fl2va"), CPU, torch.float32)


def test_statistics_come_from_the_checkpoint(tiny_checkpoint, tmp_path, video_latents):
    copy = tmp_path / "FL2VA"
    shutil.copytree(tiny_checkpoint / "FL2VA", copy)
    change_config(copy / "video_vae" / "config.json", doubled_std)
    original, scaled = (
        load_video_vae(identify(folder, "fl2va"), CPU, torch.float32)
        for folder in (tiny_checkpoint, copy)
    )
    halves = next(scaled.decode_clips(video_latents / 2))
    assert np.array_equal(halves, next(original.decode_clips(video_latents)))
    assert not np.array_equal(halves, next(scaled.decode_clips(video_latents)))


@pytest.mark.parametrize("load", [load_video_vae, load_video_encoder])
@pytest.mark.parametrize(("key", "value"), [("vae_tile_size", 128), ("vae_tile_overlap_min", 32)])
def test_a_release_for_other_tiles_is_refused(tiny_checkpoint, tmp_path, key, value, load):
    copy = tmp_path / "FL2VA"
    shutil.copytree(tiny_checkpoint / "FL2VA", copy)
    change_config(copy / "video_vae" / "config.json", lambda config: config | {key: value})
    with pytest.raises(CheckpointError, match=f"{key} {value} is not legal; legal: "):
        load_video_vae(identify(copy, "fl2va"), CPU, torch.float32)


def change_config(path: Path, change) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def doubled_std(config: dict) -> dict:
    return config | {"latents_std": [2 * value for value in config["latents_std"]]}
