"""Where objects are at given times: the closed form of `scenes`, on tensors."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from build_engines.train_tiny.scenes import PARAMETERS, SceneTensors


@dataclass(slots=True)
class MotionState:
    """State of every object at every time, [B, K, T].

    Attributes:
        x: pixels from the left.
        y: pixels from the top.
        radius: pixels.
        phase_s: seconds since the phase was 0 (a bounce, or the moment it lit up).
        until_dark_s: seconds until it goes dark; negative while it is dark.
        present: 1 or 0, [B, K, 1].
    """

    x: Tensor
    y: Tensor
    radius: Tensor
    phase_s: Tensor
    until_dark_s: Tensor
    present: Tensor

    @property
    def visible(self) -> Tensor:
        """1 while an object is seen, else 0."""
        return (self.until_dark_s > 0).to(self.x.dtype) * self.present


def motion_state(scenes: SceneTensors, times: Tensor) -> MotionState:
    """State of all objects.

    Args:
        scenes: a batch.
        times: seconds from the start of each scene, [B, T].
    """
    values = dict(zip(PARAMETERS, scenes.motion.unsqueeze(-1).unbind(2), strict=True))
    t = times.unsqueeze(1)
    cycles = (t - values["start"]) / values["period"]
    phase = cycles - torch.floor(cycles)
    angle = values["angle"] + values["omega"] * t
    hop = values["hop"] * 4 * phase * (1 - phase)
    return MotionState(
        x=values["px"] + values["vx"] * t + values["orbit"] * torch.cos(angle),
        y=values["py"] + values["vy"] * t + values["orbit"] * torch.sin(angle) - hop,
        radius=values["r0"] + values["growth"] * t,
        phase_s=phase * values["period"],
        until_dark_s=(values["duty"] - phase) * values["period"],
        present=scenes.present.unsqueeze(-1),
    )


def quarter_turn_pan(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Left and right gain of equal power for a place on the canvas."""
    turn = (x / width).clamp(0, 1) * (math.pi / 2)
    return torch.cos(turn), torch.sin(turn)
