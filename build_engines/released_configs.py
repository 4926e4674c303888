"""Configuration files at the released widths. Source: model sheet sections 1.1, 4 and 5."""

from dataclasses import dataclass, replace

from build_engines import tiny_configs
from build_engines.tiny_configs import Json
from minimax_h3.core.constants import TEXT_ENCODER_LAYERS
from minimax_h3.dit.dummy import RELEASED
from minimax_h3.weights.dit_config import DiTConfig

RELEASED_TEXT_LAYERS = 64

# Heads, widths and vocabulary of Qwen3-VL-32B.
_TEXT: Json = {
    "head_dim": 128,
    "hidden_size": 5120,
    "intermediate_size": 25_600,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 151_936,
}
_TEXT_ROPE: Json = {
    "mrope_interleaved": True,
    "mrope_section": [24, 20, 20],
    "rope_type": "default",
}
_VISION: Json = {
    "deepstack_visual_indexes": [8, 16, 24],
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "num_position_embeddings": 2304,
    "out_hidden_size": 5120,
}
_VIDEO: Json = {
    "ch": 128,
    "ch_mult": [1, 2, 2, 4, 4, 8],
    "num_res_blocks": 2,
    "space_down": [2, 2, 2, 2, 1, 1],
    "time_down": [1, 2, 2, 1, 1, 1],
}
_VIT: Json = {"dim_head": 64, "heads": 32, "num_layers": 36}
_AUDIO: Json = {"decoder_dim": 1024, "encoder_dim": 64, "latent_dim": 2048}


@dataclass(frozen=True)
class Sizes:
    """What a checkpoint is written from.

    Attributes:
        transformer: widths and counts of the DiT.
        text_encoder: `text_encoder/config.json`.
        video_source: `video_vae/source/config.json`.
        audio_metadata: `audio_vae/metadata.json`.
    """

    transformer: DiTConfig
    text_encoder: Json
    video_source: Json
    audio_metadata: Json


def released(blocks: int, *, whole: bool) -> Sizes:
    """The released widths.

    Args:
        blocks: of the DiT; the release has 50.
        whole: encoder and autoencoders of the release too. Otherwise the encoder has the width
            that the DiT reads and thin layers (0.1 GB instead of 67), and the autoencoders are the
            tiny ones (0.01 GB instead of 11).
    """
    transformer = replace(RELEASED, num_layers=blocks)
    if whole:
        video = tiny_configs.video_vae_source()
        return Sizes(
            transformer,
            text_encoder(RELEASED_TEXT_LAYERS, _TEXT, _VISION, _TEXT_ROPE),
            {**video, **_VIDEO, "vit_decoder_kwargs": _nested(video["vit_decoder_kwargs"], _VIT)},
            _audio_metadata(_AUDIO),
        )
    width = RELEASED.text_dim
    return Sizes(
        transformer,
        text_encoder(TEXT_ENCODER_LAYERS, {"hidden_size": width}, {"out_hidden_size": width}, {}),
        tiny_configs.video_vae_source(),
        tiny_configs.audio_vae_metadata(),
    )


def text_encoder(layers: int, text: Json, vision: Json, rope: Json) -> Json:
    """`text_encoder/config.json`: the tiny one with other numbers; its token ids stay."""
    config = tiny_configs.text_encoder()
    tiny = config["text_config"]
    assert isinstance(tiny, dict)
    scaling = _nested(tiny["rope_scaling"], rope)
    numbers = {**text, "num_hidden_layers": layers, "rope_scaling": scaling}
    return {
        **config,
        "text_config": _nested(tiny, numbers),
        "vision_config": _nested(config["vision_config"], vision),
    }


def _audio_metadata(numbers: Json) -> Json:
    metadata = tiny_configs.audio_vae_metadata()["metadata"]
    assert isinstance(metadata, dict)
    return {"metadata": {"kwargs": _nested(metadata["kwargs"], numbers)}}


def _nested(entries: object, changes: Json) -> Json:
    assert isinstance(entries, dict)
    return {**entries, **changes}
