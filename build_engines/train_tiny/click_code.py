"""What latents say about a click: two numbers at the three latents around its start.

As an angle they tell the start between two latents, and their length tells the level. They go into
two directions of the latents that tones leave next to unused, so that whatever was trained on the
latents of tones stays right about these.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from build_engines.train_tiny.motion import motion_state, quarter_turn_pan
from build_engines.train_tiny.scenes import PARAMETERS, SceneTensors
from minimax_h3.core.constants import AUDIO_HOP_SAMPLES, AUDIO_SAMPLE_RATE_HZ

DIRECTIONS = 2
_REACH = 1.5  # latents on either side of a start in which it is told
_GAIN = 4.0  # length of the code of a full click, in deviations of a latent
_HOP = PARAMETERS.index("hop")
# Directions that the last projection makes smaller than this, relative to the largest, are none.
_REACHABLE = 1e-2


def click_onsets(scenes: SceneTensors, width: int, num_samples: int) -> Tensor:
    """Where bounces click, and how loud on either side.

    Args:
        scenes: a batch.
        width: of the canvas in pixels; it scales the pan.
        num_samples: at 32 kHz, from each scene's `first_s` on.

    Returns:
        fp32 [B, 2, samples]: the gains of left and right at the first sample of each click, else 0.
    """
    # One sample more in front: a bounce is where the phase is less than one sample ago.
    steps = torch.arange(-1, num_samples, device=scenes.ground.device) / AUDIO_SAMPLE_RATE_HZ
    times = scenes.first_s[:, None] + steps
    state = motion_state(scenes, times)
    returned = state.phase_s[:, :, 1:] < state.phase_s[:, :, :-1]
    bounces = (scenes.motion[:, :, _HOP, None] != 0) & (scenes.present[..., None] > 0)
    # The phase also counts back beyond the start of a scene, where no bounce is heard.
    heard = (times[:, None, 1:] >= 0) & bounces & returned
    gains = quarter_turn_pan(state.x[:, :, 1:], width)
    return torch.stack([(gain * heard).sum(1) for gain in gains], dim=1)


def click_code(onsets: Tensor) -> Tensor:
    """The two numbers of every latent.

    Args:
        onsets: of one channel, fp32 [B, 1, samples], whole latents.

    Returns:
        fp32 [B, 2, samples / 800]. With d the distance of a latent's middle from the start, in
        latents: the gain times 4 cos(pi d / 3)^2 times (cos(pi d / 2), sin(pi d / 2)), d up to 1.5.
    """
    kernel = _kernel().to(onsets.device)
    return F.conv1d(F.pad(onsets, (AUDIO_HOP_SAMPLES,) * 2), kernel, stride=AUDIO_HOP_SAMPLES)


def _kernel() -> Tensor:
    """[2, 1, samples of three latents], turned round as convolutions want it."""
    size = round(2 * _REACH * AUDIO_HOP_SAMPLES)
    distance = (torch.arange(size) + 0.5) / AUDIO_HOP_SAMPLES - _REACH
    fading = _GAIN * torch.cos(math.pi / 2 * distance / _REACH).square()
    angle = math.pi / 2 * distance
    return torch.stack((fading * torch.cos(angle), fading * torch.sin(angle))).flip(1)[:, None]


def is_near(code: Tensor, latents: int = 2) -> Tensor:
    """1 within so many latents of a coded click, else 0; [B, 1, L]."""
    coded = (code.abs().amax(1, keepdim=True) > 1e-4).to(code.dtype)
    return F.max_pool1d(coded, 2 * latents + 1, 1, latents)


def unused_directions(latents: Tensor, projection: Tensor) -> tuple[Tensor, Tensor]:
    """Directions of the latents of least power among those that the encoder can write.

    Args:
        latents: of tones, normalised, [B, 32, L].
        projection: the encoder's last matrix, from features to normalised latents, [32, 32].

    Returns:
        The directions, orthonormal, [2, 32], and the power of the latents in each, [2].
    """
    left, sizes, _ = torch.linalg.svd(projection)
    written = left[:, sizes > _REACHABLE * sizes[0]]
    rows = latents.transpose(1, 2).flatten(0, 1) @ written
    power, turned = torch.linalg.eigh(rows.T @ rows / len(rows))
    return (written @ turned[:, :DIRECTIONS]).T.contiguous(), power[:DIRECTIONS]


def features_of(directions: Tensor, projection: Tensor) -> Tensor:
    """What the projection turns into these directions, a column for each, [32, 2]."""
    return torch.linalg.pinv(projection, rtol=_REACHABLE) @ directions.T
