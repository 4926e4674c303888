"""The streamed decode against `AutoencoderKLMiniMaxH3.decode` and a plain pixel conversion."""

import itertools
import weakref

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from minimax_h3.core.constants import PIXEL_MEAN, PIXEL_STD
from minimax_h3.core.errors import H3Error
from minimax_h3.vae import video_decoder
from minimax_h3.vae.pixels import interleaved, planar_yuv420, to_rgb8
from minimax_h3.vae.tiling import TileRule
from minimax_h3.vae.video_decoder import VideoDecoder, Wanted

# Bitwise here; the limits leave room for a BLAS that rounds another way.
MAX_STEP = 1
MAX_SHARE = 1e-3
# Tiny VAEs with 4x spatial stride get tiles of 32 px, so that a canvas has several.
SMALL_TILES = TileRule(32, 8)


def decoder(module, **options) -> VideoDecoder:
    config = module.config
    return VideoDecoder(module, config.latents_mean, config.latents_std, "cpu", **options)


def reference_frames(module, latents: np.ndarray) -> np.ndarray:
    """Whole-video decode by diffusers; uint8 [F, H, W, 3]."""

    def channels(values) -> torch.Tensor:
        return torch.tensor(values).view(1, -1, 1, 1, 1)

    config = module.config
    normalised = torch.from_numpy(latents)[None]
    with torch.inference_mode():
        denormalised = normalised * channels(config.latents_std) + channels(config.latents_mean)
        video = module.decode(denormalised, return_dict=False)[0]
        pixels = (video.float() * channels(PIXEL_STD) + channels(PIXEL_MEAN)).clamp(0, 1)
    return (pixels[0].permute(1, 2, 3, 0).numpy() * 255).round().astype(np.uint8)


def assert_frames_equal(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    difference = np.abs(ours.astype(np.int16) - theirs)
    assert difference.max() <= MAX_STEP
    assert (difference > 0).mean() <= MAX_SHARE
    assert theirs.std() > 20, "the oracle's picture must not be flat"


@pytest.mark.parametrize(
    ("height", "width", "latent_frames"),
    [(32, 32, 37), (64, 64, 12), (320, 288, 7), (512, 256, 7), (272, 480, 7)],
)
def test_decode_equals_diffusers_at_the_released_strides(
    vae16, random_latents, height, width, latent_frames
):
    latents = random_latents(24, latent_frames, height // 16, width // 16)
    ours = np.concatenate(list(decoder(vae16).decode_clips(latents)))
    assert_frames_equal(ours, reference_frames(vae16, latents))


@pytest.mark.parametrize("latent_frames", [3, 7, 32, 33, 34, 35, 36, 37, 107])
def test_every_length_and_small_tiles_equal_diffusers(vae4, random_latents, latent_frames):
    latents = random_latents(4, latent_frames, 12, 18)
    vae4.enable_tiling(32, 32, 8, 8)
    try:
        theirs = reference_frames(vae4, latents)
    finally:
        vae4.enable_tiling(256, 256, 64, 64)
    ours = np.concatenate(list(decoder(vae4, tiles=SMALL_TILES).decode_clips(latents)))
    assert_frames_equal(ours, theirs)


def test_batched_tiles_equal_single_ones(vae16, random_latents):
    latents = random_latents(24, 7, 20, 18)
    single = next(decoder(vae16).decode_clips(latents))
    for size in (2, 3, 64):
        batched = next(decoder(vae16, tiles_per_batch=size).decode_clips(latents))
        difference = np.abs(batched.astype(np.int16) - single)
        assert difference.max() <= MAX_STEP
        assert (difference > 0).mean() <= MAX_SHARE


@pytest.mark.parametrize(
    ("latent_frames", "sizes"),
    [
        (32, [17] * 5 + [22]),
        (37, [17] * 6 + [22]),
        (62, [17] * 11 + [22]),
        (72, [17] * 13 + [22]),
        (107, [17] * 20 + [22]),
        (36, [17] * 6 + [18]),
        (35, [17] * 7),
        (34, [17] * 6 + [13]),
        (33, [17] * 6 + [9]),
    ],
)
def test_one_chunk_a_clip(vae4, random_latents, latent_frames, sizes):
    chunks = list(decoder(vae4).decode_clips(random_latents(4, latent_frames, 2, 2)))
    assert [len(chunk) for chunk in chunks] == sizes
    assert {(chunk.dtype, chunk.shape[1:]) for chunk in chunks} == {(np.dtype(np.uint8), (8, 8, 3))}
    assert all(chunk.flags.c_contiguous and chunk.flags.writeable for chunk in chunks)


def test_chunks_leave_as_soon_as_their_clip_is_decoded(vae4, random_latents, monkeypatch):
    decoded = []
    streamed = decoder(vae4)
    original = streamed._decode_clip
    monkeypatch.setattr(
        streamed, "_decode_clip", lambda *args: (decoded.append(1), original(*args))[1]
    )
    for seen, _ in enumerate(streamed.decode_clips(random_latents(4, 37, 2, 2)), start=1):
        assert len(decoded) == seen


def test_a_consumer_may_write_into_its_chunk(vae4, random_latents):
    latents = random_latents(4, 22, 4, 4)
    untouched = [chunk.copy() for chunk in decoder(vae4).decode_clips(latents)]
    for expected, chunk in zip(untouched, decoder(vae4).decode_clips(latents), strict=True):
        assert np.array_equal(chunk, expected)
        chunk[:] = 255


def test_an_abandoned_decode_does_not_spoil_the_next(vae4, random_latents):
    streamed = decoder(vae4)
    latents = random_latents(4, 17, 4, 4)
    expected = np.concatenate(list(streamed.decode_clips(latents)))
    abandoned = streamed.decode_clips(random_latents(4, 17, 4, 4, seed=99))
    next(abandoned)
    between = [next(abandoned).copy()]
    assert np.array_equal(np.concatenate(list(streamed.decode_clips(latents))), expected)
    between.append(next(abandoned).copy())
    abandoned.close()
    again = list(streamed.decode_clips(random_latents(4, 17, 4, 4, seed=99)))
    assert all(np.array_equal(a, b) for a, b in zip(between, again[1:], strict=True))


def test_the_consumer_runs_outside_inference_mode(vae4, random_latents):
    for _ in decoder(vae4).decode_clips(random_latents(4, 12, 2, 2)):
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()


def test_a_constant_scene_repeats_clip_by_clip_without_a_flash(vae4):
    frames = np.concatenate(list(decoder(vae4).decode_clips(np.zeros((4, 37, 4, 4), np.float32))))
    # Every clip after the first sees the same latents and the same kept frames.
    assert np.array_equal(frames[17:102], frames[34:119])
    assert not np.array_equal(frames[:5], frames[17:22]), "only the first clip starts unfaded"


def test_memory_holds_one_clip_whatever_the_length(vae4, random_latents, monkeypatch):
    """No fp32 canvas, tile or chunk of an earlier clip lives while the next one is decoded."""
    storages: list[StorageWeakRef] = []
    chunks: list[weakref.ref] = []
    alive_at_a_clip: list[int] = []
    stitch = video_decoder.stitch

    def watch(tensor: torch.Tensor) -> None:
        storages.append(StorageWeakRef(tensor.untyped_storage()))

    def watched_stitch(tiles, rows, columns):
        alive = sum(not storage.expired() for storage in storages)
        alive_at_a_clip.append(alive + sum(chunk() is not None for chunk in chunks))
        canvas = stitch(tiles, rows, columns)
        watch(canvas)
        for tile in itertools.chain.from_iterable(tiles):
            watch(tile)
        return canvas

    monkeypatch.setattr(video_decoder, "stitch", watched_stitch)
    for chunk in decoder(vae4, tiles=SMALL_TILES).decode_clips(random_latents(4, 62, 12, 12)):
        chunks.append(weakref.ref(chunk))
        del chunk
    assert alive_at_a_clip == [0] * 12


@pytest.mark.parametrize("shape", [(24, 7, 4), (5, 7, 4, 4), (1, 4, 7, 4, 4)])
def test_wrong_shapes_are_refused_at_the_call(vae4, shape):
    with pytest.raises(ValueError, match=r"latents: shape .* legal: \[4, T, h, w\]"):
        decoder(vae4).decode_clips(np.zeros(shape, np.float32))


def test_too_few_latents_are_refused_at_the_call(vae4):
    with pytest.raises(ValueError, match="3 or more"):
        decoder(vae4).decode_clips(np.zeros((4, 2, 4, 4), np.float32))


def test_wrong_statistics_are_refused(vae4):
    with pytest.raises(ValueError, match="latents_std: 3 values"):
        VideoDecoder(vae4, [0.0] * 4, [1.0] * 3, "cpu")


def test_a_clip_that_is_not_finite_is_an_error_and_not_a_black_picture(vae4, random_latents):
    latents = random_latents(4, 17, 4, 4)
    latents[0, 8] = np.nan
    chunks = decoder(vae4).decode_clips(latents)
    next(chunks)
    with pytest.raises(H3Error, match="clip 1 of 3 is not finite"):
        next(chunks)


def test_pixels_are_reverted_clamped_and_rounded(vae4):
    normalised = torch.randn(3, 6, 16, 16, generator=torch.Generator().manual_seed(5)) * 3
    mean, std = (np.array(values).reshape(3, 1, 1, 1) for values in (PIXEL_MEAN, PIXEL_STD))
    pixels = np.clip(normalised.numpy() * std + mean, 0, 1)
    expected = np.rint(pixels * 255).transpose(1, 2, 3, 0)
    levels = interleaved(to_rgb8(normalised)).numpy()
    assert (levels == expected).mean() > 0.9999, "fp32 may round a tie the other way"
    assert {0, 255} <= set(levels.ravel().tolist())


def test_a_clip_under_way_changes_no_picture_and_keeps_its_number(vae4, random_latents):
    latents = random_latents(4, 22, 4, 4)
    plain = list(decoder(vae4).decode_clips(latents))
    ahead = list(decoder(vae4, clips_ahead=1).decode_clips(latents))
    assert all(np.array_equal(one, other) for one, other in zip(plain, ahead, strict=True))
    latents[0, 8] = np.nan
    chunks = decoder(vae4, clips_ahead=1).decode_clips(latents)
    next(chunks)
    with pytest.raises(H3Error, match="clip 1 of 4 is not finite"):
        next(chunks)


def test_planar_pictures_come_from_the_same_8_bit_values(vae4, random_latents):
    latents = random_latents(4, 12, 4, 4)
    for clip in decoder(vae4).decode(latents, Wanted(rgb=True, yuv=True)):
        rgb = torch.from_numpy(clip.rgb).permute(3, 0, 1, 2)
        assert np.array_equal(clip.yuv, planar_yuv420(rgb).numpy())
    [first, second] = decoder(vae4).decode(latents, Wanted(rgb=False, yuv=True))
    assert first.rgb is None
    assert first.yuv.shape == (17, 24, 16)
    assert second.yuv.shape == (22, 24, 16)
