"""Name and shape of every tensor of the transformer, from its configuration alone."""

from minimax_h3.weights.dit_config import DiTConfig

# The released model keeps these in fp32 whatever the rest uses. Source: model sheet 1.8.
DIT_FP32_PREFIXES = ("video_in.", "audio_in.", "time_embedder.", "video_out.", "audio_out.")


def transformer_shapes(config: DiTConfig) -> dict[str, tuple[int, ...]]:
    """Shapes under our names, in a fixed order. Source: model sheet 1.2."""
    hidden, time_out = config.hidden_size, config.time_out_dim
    shapes = {
        **_linear("video_in", hidden, config.video_row_width),
        **_linear("audio_in", hidden, config.audio_channels),
        **_linear("text_in", hidden, config.text_dim),
        **_linear("time_embedder.linear_1", config.time_hidden_dim, config.freq_dim),
        **_linear("time_embedder.linear_2", time_out, config.time_hidden_dim),
    }
    for index in range(config.num_refiner_layers):
        shapes |= _block(f"refiner.blocks.{index}", config)
    shapes["refiner.final_norm.weight"] = (hidden,)
    for index in range(config.num_layers):
        shapes |= _block(f"blocks.{index}", config)
        shapes |= _linear(f"blocks.{index}.adaln", config.adaln_dim, time_out)
    shapes["final.norm.weight"] = (hidden,)
    shapes |= _linear("final.adaln", 2 * hidden, time_out)
    shapes |= _linear("video_out", config.video_row_width, hidden)
    return shapes | _linear("audio_out", config.audio_channels, hidden)


def _linear(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _block(name: str, config: DiTConfig) -> dict[str, tuple[int, ...]]:
    hidden = config.hidden_size
    return {
        f"{name}.norm1.weight": (hidden,),
        f"{name}.attn.qkv.weight": (3 * config.inner_dim, hidden),
        f"{name}.attn.q_norm.weight": (config.head_dim,),
        f"{name}.attn.k_norm.weight": (config.head_dim,),
        f"{name}.attn.out.weight": (hidden, config.inner_dim),
        f"{name}.norm2.weight": (hidden,),
        f"{name}.mlp.fc1.weight": (2 * config.ffn_dim, hidden),
        f"{name}.mlp.fc2.weight": (hidden, config.ffn_dim),
    }
