"""Sound of scenes: a tone per object, loud by size, panned by place, and a click at each bounce."""

import math

import torch
from torch import Tensor

from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.motion import motion_state, quarter_turn_pan
from build_engines.train_tiny.scenes import PARAMETERS, SceneTensors
from minimax_h3.core.constants import AUDIO_SAMPLE_RATE_HZ

_FADE_S = 0.01  # a tone that starts at once would click itself
_HOP, _DUTY = PARAMETERS.index("hop"), PARAMETERS.index("duty")


def tone(pitch_hz: Tensor, times: Tensor) -> Tensor:
    """A sine and its octave, of amplitude about 1; double precision keeps the phase."""
    turns = pitch_hz.double() * times.double()
    phase = ((turns - torch.floor(turns)) * (2 * math.pi)).float()
    return torch.sin(phase) + words.OVERTONE * torch.sin(2 * phase)


def click(since_s: Tensor) -> Tensor:
    """A short burst that dies away, by the seconds since its start; silent before it."""
    burst = torch.sin(2 * math.pi * words.CLICK_HZ * since_s)
    return burst * torch.exp(-since_s / words.CLICK_DECAY_S) * (since_s >= 0)


def render_sound(
    scenes: SceneTensors, width: int, height: int, num_samples: int, *, clicks: bool = True
) -> Tensor:
    """Waveform from each scene's `first_s` on.

    Args:
        scenes: a batch.
        width: of the canvas in pixels; it scales the pan.
        height: of the canvas in pixels; it scales the loudness.
        num_samples: at 32 kHz.
        clicks: without them, the tones alone.

    Returns:
        fp32 in (-1, 1), [B, 2, samples], left and right.
    """
    device = scenes.ground.device
    steps = torch.arange(num_samples, device=device, dtype=torch.float32) / AUDIO_SAMPLE_RATE_HZ
    times = scenes.first_s[:, None] + steps
    state = motion_state(scenes, times)
    largest = words.SIZE_RADII[-1][1] * height / words.REFERENCE_HEIGHT
    fade_in = (state.phase_s / _FADE_S).clamp(0, 1)
    fade_out = (state.until_dark_s / _FADE_S).clamp(0, 1)
    # Only what blinks fades: the phase of other objects runs on through their bounces.
    lasting = (scenes.motion[:, :, _DUTY, None] > 1).to(times.dtype)
    gate = lasting + (1 - lasting) * fade_in * fade_out
    level = words.TONE_LEVEL * state.radius / largest * gate
    sound = level * tone(scenes.pitch_hz[..., None], times[:, None])
    if clicks:
        bounces = (scenes.motion[:, :, _HOP, None] != 0).to(times.dtype)
        # The phase also counts back beyond the start of a scene, where no bounce is heard.
        heard = (state.phase_s <= times[:, None]).to(times.dtype)
        sound = sound + words.CLICK_LEVEL * bounces * heard * click(state.phase_s)
    left, right = quarter_turn_pan(state.x, width)
    sound = sound * state.present
    return torch.stack(((sound * left).sum(1), (sound * right).sum(1)), dim=1)
