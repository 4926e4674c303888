"""Shape of the diffusion transformer, read from a checkpoint's `transformer/config.json`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from minimax_h3.core.errors import CheckpointError

MODALITIES = 3
ADALN_PARTS = 6  # shift, scale and gate for attention, then for the feed-forward
ROPE_AXES = 3

# field -> key in config.json. Source: model sheet 1.1.
_OFFICIAL_KEYS = {
    "hidden_size": "hidden_size",
    "num_layers": "num_layers",
    "num_refiner_layers": "token_refiner_num_layers",
    "num_heads": "num_attention_heads",
    "head_dim": "attention_head_dim",
    "ffn_dim": "ffn_hidden_size",
    "video_channels": "latents_dim",
    "audio_channels": "audio_latents_dim",
    "patch_size": "patch_size",
    "text_dim": "text_dim",
    "freq_dim": "timestep_input_dim",
    "time_hidden_dim": "time_embed_hidden_size",
    "time_out_dim": "time_embed_dim",
    "rope_freqs": "rope_inv_freq_len",
    "norm_eps": "norm_eps",
    "qk_norm_eps": "qk_norm_eps",
    "final_norm_eps": "final_norm_eps",
}
_DIFFUSERS_KEYS = _OFFICIAL_KEYS | {
    "num_refiner_layers": "num_refiner_layers",
    "ffn_dim": "ffn_dim",
    "video_channels": "in_channels",
    "audio_channels": "audio_in_channels",
    "freq_dim": "freq_dim",
    "time_hidden_dim": "time_embed_hidden_dim",
    "rope_freqs": "rope_freq_dim",
    "rope_theta": "rope_theta",
}
_EPSILONS = frozenset({"norm_eps", "qk_norm_eps", "final_norm_eps"})
_FLOATS = _EPSILONS | {"rope_theta"}

# Keys that say nothing about the shape: who wrote the file, and in which precision.
_ANNOTATIONS = frozenset(
    {
        *("_class_name", "_diffusers_version", "_name_or_path", "architectures", "auto_map"),
        *("dtype", "model_type", "torch_dtype", "transformers_version"),
    }
)
_DERIVED = frozenset({"adaln_out_features", "final_adaln_out_features"})


@dataclass(frozen=True, slots=True)
class DiTConfig:
    """Widths and counts of one transformer. Source: model sheet 1.1.

    Attributes:
        hidden_size: width of the residual stream.
        num_layers, num_refiner_layers: blocks of the packed sequence, blocks of the text refiner.
        num_heads, head_dim: attention shape; `num_heads * head_dim` differs from `hidden_size`.
        ffn_dim: inner width of the SwiGLU feed-forward.
        text_dim: width of the text encoder's features.
        freq_dim: width of the sinusoid of a timestep.
        time_hidden_dim, time_out_dim: widths of the time MLP.
        rope_freqs, rope_theta: rotary frequencies per axis and their base.
        norm_eps, qk_norm_eps, final_norm_eps: RMSNorm epsilons.
        video_channels, audio_channels: latent channels.
        patch_size: latent cells per video row, (t, h, w).
    """

    hidden_size: int
    num_layers: int
    num_refiner_layers: int
    num_heads: int
    head_dim: int
    ffn_dim: int
    text_dim: int
    freq_dim: int
    time_hidden_dim: int
    time_out_dim: int
    norm_eps: float = 1e-5
    qk_norm_eps: float = 1e-5
    final_norm_eps: float = 1e-5
    video_channels: int = 24
    audio_channels: int = 32
    patch_size: tuple[int, int, int] = (1, 2, 2)
    rope_freqs: int = 16
    rope_theta: float = 10000.0

    def __post_init__(self) -> None:
        """Refuse shapes that no module can be built from."""
        rotated = 2 * ROPE_AXES * self.rope_freqs
        if self.head_dim < rotated:
            raise CheckpointError(
                f"head_dim: {self.head_dim} is not legal with rope_freqs {self.rope_freqs}; "
                f"legal: {rotated} or more"
            )
        if self.freq_dim % 2:
            raise CheckpointError(f"freq_dim: {self.freq_dim} is not legal; legal: an even number")

    @property
    def inner_dim(self) -> int:
        """Width of concatenated attention heads."""
        return self.num_heads * self.head_dim

    @property
    def video_row_width(self) -> int:
        """Values per video row: channels times patch cells."""
        return self.video_channels * math.prod(self.patch_size)

    @property
    def adaln_dim(self) -> int:
        """Outputs of one block's AdaLN projection: 3 modalities times 6 parts."""
        return MODALITIES * ADALN_PARTS * self.hidden_size

    @classmethod
    def from_official(cls, config: Mapping[str, object]) -> "DiTConfig":
        """Read the `config.json` of an official partition.

        Raises:
            CheckpointError: a key is missing, unknown, ill-typed, or contradicts the others.
        """
        known = frozenset(_OFFICIAL_KEYS.values()) | _DERIVED | {"rope_theta"}
        # Official files may leave the epsilons to the code that reads them; the released values
        # are the field defaults.
        keys = {
            field: key
            for field, key in _OFFICIAL_KEYS.items()
            if field not in _EPSILONS or key in config
        }
        parsed = cls(**_read(config, keys, known))  # type: ignore[arg-type]  # checked there
        if "rope_theta" in config and config["rope_theta"] != parsed.rope_theta:
            raise CheckpointError(
                f"transformer config: rope_theta {config['rope_theta']!r} is not legal; "
                f"legal: {parsed.rope_theta:g}, the base that official files imply"
            )
        for key, derived in (
            ("adaln_out_features", parsed.adaln_dim),
            ("final_adaln_out_features", 2 * parsed.hidden_size),
        ):
            if key in config and config[key] != derived:
                raise CheckpointError(
                    f"transformer config: {key} {config[key]!r} is not legal; legal: {derived}, "
                    f"which hidden_size {parsed.hidden_size} implies"
                )
        return parsed

    @classmethod
    def from_diffusers(cls, config: Mapping[str, object]) -> "DiTConfig":
        """Read the `config.json` of a diffusers `transformer/` folder.

        Raises:
            CheckpointError: a key is missing, unknown or ill-typed.
        """
        known = frozenset(_DIFFUSERS_KEYS.values())
        return cls(**_read(config, _DIFFUSERS_KEYS, known))  # type: ignore[arg-type]  # checked there

    def to_official(self) -> dict[str, object]:
        """The `config.json` entries of an official partition; inverse of `from_official`."""
        written: dict[str, object] = {
            key: _plain(getattr(self, field)) for field, key in _OFFICIAL_KEYS.items()
        }
        derived = {
            "adaln_out_features": self.adaln_dim,
            "final_adaln_out_features": 2 * self.hidden_size,
        }
        return written | derived

    def to_diffusers(self) -> dict[str, object]:
        """The `config.json` entries of a diffusers folder; inverse of `from_diffusers`."""
        return {key: _plain(getattr(self, field)) for field, key in _DIFFUSERS_KEYS.items()}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _read(
    config: Mapping[str, object], keys: Mapping[str, str], known: frozenset[str]
) -> dict[str, object]:
    missing = sorted(key for key in keys.values() if key not in config)
    if missing:
        raise CheckpointError(f"transformer config: missing keys: {', '.join(missing)}")
    unknown = sorted(set(config) - known - _ANNOTATIONS)
    if unknown:
        raise CheckpointError(
            f"transformer config: unknown keys: {', '.join(unknown)}; known: "
            f"{', '.join(sorted(known))}"
        )
    return {field: _typed(field, key, config[key]) for field, key in keys.items()}


def _typed(field: str, key: str, value: object) -> object:
    if field == "patch_size":
        if isinstance(value, list | tuple) and len(value) == 3 and all(map(_is_count, value)):
            return tuple(value)
        legal = "three positive integers"
    elif field in _FLOATS:
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return float(value)
        legal = "a positive number"
    else:
        if _is_count(value):
            return value
        legal = "a positive integer"
    raise CheckpointError(f"transformer config: {key} {value!r} is not legal; legal: {legal}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
