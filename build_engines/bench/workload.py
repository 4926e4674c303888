"""What is measured: a model size, and requests by their number of frames."""

from dataclasses import dataclass

import torch

from minimax_h3.core.plan import Plan, build_plan
from minimax_h3.core.request import GenerationRequest
from minimax_h3.denoise.session import Conditioning
from minimax_h3.dit.dummy import RELEASED
from minimax_h3.packing.layout import PackedLayout, pack_keyframe_request
from minimax_h3.weights.dit_config import DiTConfig

# Frames -> prompt tokens: 37,966, 58,758 and 109,318 rows on the released canvas.
TEXT_ROWS = {124: 256, 192: 662, 362: 256}
DEFAULT_TEXT_ROWS = 256

# Heads as wide as the released ones, so that every attention backend takes it.
SMALL = DiTConfig(
    hidden_size=256,
    num_layers=2,
    num_refiner_layers=1,
    num_heads=4,
    head_dim=128,
    ffn_dim=512,
    text_dim=64,
    freq_dim=32,
    time_hidden_dim=64,
    time_out_dim=64,
)
MODELS = {"released": RELEASED, "released_on_small_canvas": RELEASED, "small": SMALL}
CANVASES = {"released": (1344, 768), "released_on_small_canvas": (320, 192), "small": (96, 64)}
"""`released_on_small_canvas` is the released model on a small canvas, where FP32 attention fits."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One request for one model.

    Attributes:
        model: key of `MODELS`.
        frames: 17 n + 5.
        text_rows: prompt tokens.
        num_points: sigma points; one more than forwards.
    """

    model: str
    frames: int
    text_rows: int
    num_points: int = 50

    @classmethod
    def of(cls, model: str, frames: int, num_points: int = 50) -> "Workload":
        """With the number of prompt tokens that goes with the frames."""
        return cls(model, frames, TEXT_ROWS.get(frames, DEFAULT_TEXT_ROWS), num_points)

    @property
    def config(self) -> DiTConfig:
        """Sizes of the transformer."""
        return MODELS[self.model]

    @property
    def plan(self) -> Plan:
        """The request as the server would plan it."""
        width, height = CANVASES[self.model]
        request = GenerationRequest.from_fields(
            {
                "prompt": "bench",
                "width": width,
                "height": height,
                "num_frames": self.frames,
                "num_inference_steps": self.num_points,
            }
        )
        return build_plan(
            request,
            job_id="bench",
            alias="",
            text_rows=self.text_rows,
            flow_shift=12.0,
            audio_flow_shift=3.0,
            received_at=0.0,
        )

    @property
    def rows(self) -> int:
        """Packed rows, S."""
        return self.plan.packed_rows

    def layout(self) -> PackedLayout:
        """The packed sequence."""
        plan = self.plan
        return pack_keyframe_request(
            torch.ones(self.text_rows, dtype=torch.int64),
            latent_frames=plan.latent_frames,
            height=plan.latent_height,
            width=plan.latent_width,
            audio_latents=plan.audio_latents,
        )

    def conditioning(self) -> Conditioning:
        """Random prompt features with one token that is much larger than the rest."""
        generator = torch.Generator().manual_seed(1)
        embeds = torch.randn(self.text_rows, self.config.text_dim, generator=generator)
        embeds[0] *= 50
        return Conditioning(
            prompt_embeds=embeds,
            text_tags=torch.ones(self.text_rows, dtype=torch.int64),
            condition_rows=torch.zeros(0, self.config.video_row_width),
            audio_condition_rows=torch.zeros(0, self.config.audio_channels),
        )


def flops(config: DiTConfig, rows: int) -> tuple[float, float]:
    """Floating-point operations of one block: matrix products, attention."""
    inner, hidden = config.inner_dim, config.hidden_size
    weights = 4 * inner * hidden + 3 * config.ffn_dim * hidden
    return 2.0 * rows * weights, 4.0 * inner * rows**2
