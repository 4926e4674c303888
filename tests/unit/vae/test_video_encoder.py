"""Condition latents against diffusers' own recipe on the same weights: equal bit for bit."""

import weakref

import numpy as np
import pytest
import torch
from diffusers.modular_pipelines.minimax_h3.encoders import encode_vae_condition

from minimax_h3.core.constants import PIXEL_MEAN, PIXEL_STD
from minimax_h3.core.errors import H3Error
from minimax_h3.vae.tiling import TileRule
from minimax_h3.vae.video_encoder import VideoEncoder

SMALL_TILES = TileRule(64, 16)


def encoder(module, **options) -> VideoEncoder:
    return VideoEncoder(
        module, module.config.latents_mean, module.config.latents_std, "cpu", **options
    )


def reference(module, frames: np.ndarray) -> torch.Tensor:
    pixels = torch.from_numpy(frames).permute(3, 0, 1, 2)[None]
    with torch.no_grad():
        return encode_vae_condition(module, pixels, PIXEL_MEAN, PIXEL_STD)[0]


def random_frames(frames: int, height: int, width: int, seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (frames, height, width, 3), dtype=np.uint8)


@pytest.fixture
def small_tiles(vae4):
    vae4.enable_tiling(64, 64, 16, 16)
    yield vae4
    vae4.enable_tiling(256, 256, 64, 64)


@pytest.mark.parametrize(
    ("frames", "height", "width"),
    [
        (1, 32, 48),
        (1, 64, 96),
        (1, 112, 160),
        (5, 32, 32),
        (20, 32, 32),
        (22, 80, 80),
        (39, 32, 80),
    ],
)
def test_equals_diffusers_bit_for_bit(small_tiles, frames, height, width):
    given = random_frames(frames, height, width)
    latents = encoder(small_tiles, tiles=SMALL_TILES).encode(given)
    expected = reference(small_tiles, given)
    assert latents.dtype == torch.float32
    assert latents.shape[1] == {1: 1, 5: 2, 20: 7, 22: 7, 39: 12}[frames]
    assert torch.equal(latents, expected)
    assert latents.std() > 0.1


def test_the_released_stride_and_tiles(vae16):
    given = random_frames(1, 320, 288)
    latents = encoder(vae16).encode(given)
    assert latents.shape == (24, 1, 20, 18)
    assert torch.equal(latents, reference(vae16, given))


def test_a_picture_is_not_a_still_video(vae4):
    still = np.repeat(random_frames(1, 32, 32), 22, axis=0)
    video = encoder(vae4).encode(still)
    picture = encoder(vae4).encode(still[:1])
    assert video.shape[1] == 7
    assert not torch.allclose(video[:, :1], picture, atol=0.05)


def test_the_posterior_is_drawn_under_its_own_seed_for_every_condition(vae4):
    given = random_frames(1, 32, 32)
    torch.manual_seed(7)
    untouched = torch.random.get_rng_state()
    first = encoder(vae4).encode(given)
    assert torch.equal(torch.random.get_rng_state(), untouched)
    torch.manual_seed(8)
    assert torch.equal(encoder(vae4).encode(given), first)


def test_latents_are_rounded_to_fp16_before_they_are_normalised(vae4):
    latents = encoder(vae4).encode(random_frames(1, 32, 32))
    mean, std = (
        torch.tensor(values).view(-1, 1, 1, 1)
        for values in (vae4.config.latents_mean, vae4.config.latents_std)
    )
    raw = latents * std + mean
    assert (raw - raw.half().float()).abs().max() < 1e-5
    means = [moments[:4] for moments in encoder(vae4).encode_clips(random_frames(1, 32, 32))]
    assert (raw - means[0]).abs().max() > 1e-3, "the mean itself would be another condition"


def test_frames_are_taken_as_they_come_and_let_go(vae4):
    alive: list[weakref.ref] = []

    def frames():
        for frame in random_frames(39, 32, 32):
            own = frame.copy()
            alive.append(weakref.ref(own))
            yield own
            del own

    clips = encoder(vae4).encode_clips(frames())
    first = next(clips)
    assert first.shape == (8, 5, 8, 8)
    assert len(alive) == 17
    next(clips)
    assert sum(ref() is not None for ref in alive) <= 17
    rest = list(clips)
    assert len(rest) == 1
    assert torch.equal(
        encoder(vae4).encode(random_frames(39, 32, 32)), encoder(vae4).encode(frames())
    )


def test_wrong_frames_are_refused(vae4):
    given = random_frames(3, 32, 32)
    with pytest.raises(ValueError, match="at least one frame"):
        encoder(vae4).encode([])
    with pytest.raises(ValueError, match="clip 0: frames that are not all of shape"):
        encoder(vae4).encode([*given, given[0, :16]])
    with pytest.raises(ValueError, match="multiples of 4"):
        encoder(vae4).encode(random_frames(1, 30, 32))


def test_wrong_weights_and_statistics_are_refused(vae4):
    with pytest.raises(ValueError, match="latents_std: 3 values"):
        VideoEncoder(vae4, [0.0] * 4, [1.0] * 3, "cpu")
    vae4.quant_conv.half()
    try:
        with pytest.raises(ValueError, match=r"is torch\.float16; legal: fp32 only"):
            encoder(vae4)
    finally:
        vae4.quant_conv.float()


def test_what_is_not_finite_is_an_error(vae4, monkeypatch):
    broken = encoder(vae4)
    monkeypatch.setattr(broken, "_encode_tile", lambda pixels: torch.full((8, 5, 8, 8), torch.nan))
    with pytest.raises(H3Error, match="clip 0 is not finite"):
        broken.encode(random_frames(5, 32, 32))


def test_tf32_is_off_while_encoding_and_restored_even_after_a_failure(vae4, monkeypatch):
    before = torch.backends.cudnn.allow_tf32
    seen = []

    def failing(pixels):
        seen.append(torch.backends.cudnn.allow_tf32)
        raise RuntimeError("out of memory")

    broken = encoder(vae4)
    monkeypatch.setattr(broken, "_encode_tile", failing)
    with pytest.raises(RuntimeError):
        broken.encode(random_frames(1, 32, 32))
    assert before is True
    assert seen == [False]
    assert torch.backends.cudnn.allow_tf32 is before
