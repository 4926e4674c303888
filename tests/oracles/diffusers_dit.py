"""The diffusers transformer on the same weights as ours, and small shapes to try both on."""

import torch
from diffusers import MiniMaxH3Transformer3DModel

from minimax_h3.attention.sdpa import SdpaAttention
from minimax_h3.dit.model import FP32_MODULES, MiniMaxH3Transformer
from minimax_h3.packing.layout import PackedLayout, pack_keyframe_request
from minimax_h3.packing.row_times import RowTimes
from minimax_h3.weights.dit_config import DiTConfig

ATTENTION = SdpaAttention()

# Model sheet, appendix A: heads are wider than the residual stream, rotation is partial.
NARROW = DiTConfig(
    hidden_size=24,
    num_layers=2,
    num_refiner_layers=2,
    num_heads=2,
    head_dim=16,
    ffn_dim=32,
    video_channels=4,
    audio_channels=6,
    text_dim=8,
    freq_dim=8,
    time_hidden_dim=24,
    time_out_dim=16,
    rope_freqs=2,
)
CONVERTER = DiTConfig(
    hidden_size=64,
    num_layers=2,
    num_refiner_layers=2,
    num_heads=2,
    head_dim=32,
    ffn_dim=128,
    text_dim=48,
    freq_dim=16,
    time_hidden_dim=64,
    time_out_dim=32,
    rope_freqs=4,
)


def random_transformer(config: DiTConfig, seed: int = 0) -> MiniMaxH3Transformer:
    """Weights of a size at which every part moves the output: no zero gate, no unit norm."""
    model = MiniMaxH3Transformer(config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            parameter.copy_(1 + 0.2 * values)
        else:
            parameter.copy_(values * (parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.1))
    return model


def diffusers_weights(model: MiniMaxH3Transformer) -> dict[str, torch.Tensor]:
    """Our state dict under diffusers names: q, k and v apart, value before gate."""
    renamed: dict[str, torch.Tensor] = {}
    simple = {
        "video_in": "proj_in",
        "audio_in": "audio_proj_in",
        "text_in": "context_embedder",
        "time_embedder": "time_embedder",
        "refiner.final_norm": "token_refiner.final_norm",
        "final.norm": "norm_out.norm",
        "final.adaln": "norm_out.linear",
        "video_out": "proj_out",
        "audio_out": "audio_proj_out",
    }
    inside = {
        "attn.q_norm": "attn.norm_q",
        "attn.k_norm": "attn.norm_k",
        "attn.out": "attn.to_out.0",
        "mlp.fc2": "ff.net.2",
        "adaln": "adaln_proj.linear",
        "norm1": "norm1",
        "norm2": "norm2",
    }
    for name, weight in model.state_dict().items():
        module, leaf = name.rsplit(".", 1)
        if not module.startswith(("blocks.", "refiner.blocks.")):
            head = next(key for key in simple if module == key or module.startswith(key + "."))
            renamed[f"{simple[head]}{module[len(head) :]}.{leaf}"] = weight
            continue
        parts = module.split(".")
        at = 3 if parts[0] == "refiner" else 2
        layer, rest = parts[at - 1], ".".join(parts[at:])
        stack = "token_refiner.refiner_blocks" if at == 3 else "transformer_blocks"
        prefix = f"{stack}.{layer}"
        if rest == "attn.qkv":
            for part, rows in zip("qkv", weight.chunk(3), strict=True):
                renamed[f"{prefix}.attn.to_{part}.{leaf}"] = rows
        elif rest == "mlp.fc1":
            gate, value = weight.chunk(2)
            renamed[f"{prefix}.ff.net.0.proj.{leaf}"] = torch.cat((value, gate))
        else:
            renamed[f"{prefix}.{inside[rest]}.{leaf}"] = weight
    return renamed


def diffusers_transformer(model: MiniMaxH3Transformer) -> MiniMaxH3Transformer3DModel:
    """The oracle in the same dtypes as `model`."""
    oracle = MiniMaxH3Transformer3DModel(**model.config.to_diffusers())
    oracle.load_state_dict(diffusers_weights(model), strict=True)
    islands = {"proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out", "rope"}
    assert len(islands) == len(FP32_MODULES) + 1
    for name, child in oracle.named_children():
        if name not in islands:
            child.to(model.dtype)
    return oracle.eval().requires_grad_(False)


def run_diffusers(
    oracle: MiniMaxH3Transformer3DModel,
    video_rows: torch.Tensor,
    audio_rows: torch.Tensor,
    text: torch.Tensor,
    layout: PackedLayout,
    times: RowTimes,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One forward of the oracle, without its batch dimension."""
    video, audio = oracle(
        hidden_states=video_rows[None],
        audio_hidden_states=audio_rows[None],
        encoder_hidden_states=text[None],
        timestep=times.times,
        timestep_indices=times.index,
        token_tags=layout.token_tags,
        position_ids=layout.positions,
        video_indices=layout.video_indices,
        audio_indices=layout.audio_indices,
        text_indices=layout.text_indices,
        return_dict=False,
    )
    return video[0], audio[0]


def random_inputs(
    config: DiTConfig, layout: PackedLayout, seed: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Video rows, audio rows and text features of a layout."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(layout.video_indices.numel(), config.video_row_width, generator=generator),
        torch.randn(layout.audio_indices.numel(), config.audio_channels, generator=generator),
        torch.randn(layout.text_indices.numel(), config.text_dim, generator=generator),
    )


def small_layout(anchors: tuple[str, ...] = (), text_rows: int = 5) -> PackedLayout:
    """A few rows of everything; with keyframes some text rows belong to their vision blocks."""
    tags = torch.ones(text_rows, dtype=torch.int64)
    tags[1 : 1 + len(anchors)] = 0
    return pack_keyframe_request(
        tags, latent_frames=7, height=4, width=6, audio_latents=9, anchors=anchors
    )


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute error over the largest expected value."""
    expected = expected.to(torch.float64)
    return float((actual.to(torch.float64) - expected).abs().max() / expected.abs().max())
