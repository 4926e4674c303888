import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minimax_h3.core.lengths import frames_from_latents
from minimax_h3.vae import temporal
from minimax_h3.vae.temporal import cross_fade, plan_clips


@pytest.mark.parametrize(
    ("latents", "clips", "frames"),
    [
        (7, 1, 22),
        (32, 6, 107),
        (33, 7, 6 * 17 + 9),
        (34, 7, 6 * 17 + 13),
        (35, 7, 7 * 17),
        (36, 7, 7 * 17 + 1),
        (37, 7, 124),
        (62, 12, 209),
        (72, 14, 243),
        (107, 21, 362),
    ],
)
def test_lengths(latents, clips, frames):
    plan = plan_clips(latents)
    assert (plan.num_clips, plan.num_frames) == (clips, frames)


@given(clips=st.integers(1, 100))
def test_served_lengths_need_no_padding(clips):
    latents = 5 * clips + 2
    plan = plan_clips(latents)
    assert plan.pad_latents == 0
    assert plan.num_frames == frames_from_latents(latents)
    windows = [plan.window(clip) for clip in range(plan.num_clips)]
    assert windows[0].start == 0
    assert windows[-1].stop == latents
    assert all(after.start - before.start == 5 for before, after in itertools.pairwise(windows))


@pytest.mark.parametrize("latents", [-1, 0, 1, 2])
def test_too_few_latents_are_refused(latents):
    with pytest.raises(ValueError, match="3 or more"):
        plan_clips(latents)


def test_frame_spans_follow_the_released_geometry(vae16):
    assert vae16.tokens_chunk_size + vae16.token_overlap == temporal.WINDOW_LATENTS
    assert vae16.frame_pre_padding == temporal.LEAD_FRAMES
    own, kept = temporal.OWN_FRAMES, temporal.KEPT_FRAMES
    assert (own, kept) == (slice(3, 20), slice(23, 28))


@settings(max_examples=20)
@given(latents=st.integers(3, 40))
def test_frame_count_equals_diffusers_at_every_length(vae4, latents):
    with torch.inference_mode():
        frames = vae4.decode(torch.zeros(1, 4, latents, 1, 1), return_dict=False)[0].shape[2]
    assert plan_clips(latents).num_frames == frames


def test_cross_fade_weights():
    kept, own = torch.full((1, 5, 1, 1), 5.0), torch.zeros(1, 17, 1, 1)
    faded = cross_fade(kept, own).flatten().tolist()
    assert faded == pytest.approx([5.0, 4.0, 3.0, 2.0, 1.0] + [0.0] * 12)
    assert cross_fade(None, own) is own


def test_cross_fade_is_bitwise_the_diffusers_blend(vae4):
    generator = torch.Generator().manual_seed(3)
    kept = torch.randn(3, 5, 8, 8, generator=generator)
    own = torch.randn(3, 17, 8, 8, generator=generator)
    assert torch.equal(cross_fade(kept, own), vae4._blend(kept, own, 5, dim=-3))
