"""Writes a random checkpoint of any width in the official layout, shard by shard.

With the released widths and few blocks it shows on a GPU machine what a release would meet:
loading, layouts, kernels. A hollow one has the headers of its files and holes for their payload: it
takes no room on the disk, and `h3 serve --weights dummy` serves it at full size.
"""

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from build_engines import tiny_configs
from build_engines.autoencoders import audio_autoencoder, video_autoencoder
from build_engines.released_configs import Sizes
from build_engines.shard_writer import write_component
from build_engines.tiny_tokenizer import processor_files, tokenizer_files, write_files
from minimax_h3.core.errors import CheckpointError
from minimax_h3.dit.dummy import scale_
from minimax_h3.weights.dit_shapes import DIT_FP32_PREFIXES, transformer_shapes
from minimax_h3.weights.key_maps import KeyMap, dit_from_official, video_vae_from_official
from minimax_h3.weights.loader import build_on_meta
from minimax_h3.weights.random_scales import (
    Scale,
    audio_vae_scale,
    text_encoder_scale,
    video_vae_scale,
)
from minimax_h3.weights.vae_config import (
    official_audio_vae_arguments,
    official_video_vae_arguments,
)

SHARD_BYTES = 5_000_000_000
ONE_FILE = 1 << 60
Named = Iterator[tuple[str, Tensor]]


@dataclass(frozen=True)
class Pencil:
    """Draws tensors; a tensor's values depend on seed and name alone.

    Attributes:
        seed: of everything.
        device: where values are drawn.
        hollow: draw nothing; tensors stay on meta and become holes in their files.
    """

    seed: int
    device: torch.device
    hollow: bool

    def normal(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Standard normal values."""
        if self.hollow:
            return torch.empty(shape, dtype=dtype, device="meta")
        seed = zlib.crc32(f"{self.seed}.{name}".encode())
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.empty(shape, dtype=dtype, device=self.device).normal_(generator=generator)

    def scaled(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, scale: Scale) -> Tensor:
        """Normal values of the scale that `name` has."""
        mean, deviation = scale(name, shape)
        return self.normal(name, shape, dtype).mul_(deviation).add_(mean)


def write_full_width(
    target: Path,
    sizes: Sizes,
    pencil: Pencil,
    *,
    partition: str = "FL2VA",
    shard_bytes: int = SHARD_BYTES,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write `<target>/<partition>`.

    Args:
        target: folder of partitions.
        sizes: widths and counts.
        pencil: draws the weights.
        partition: `FL2VA` or `Ref2VA`.
        shard_bytes: largest shard; the process holds one.
        say: is told each component that is written.

    Raises:
        CheckpointError: the partition folder exists and holds something.
    """
    root = target / partition
    if root.exists() and any(root.iterdir()):
        raise CheckpointError(f"{root}: exists and is not empty; remove it or name another folder")
    _write_configs(root, sizes, partition, pencil.seed)
    for folder, tensors, limit in (
        ("transformer", _transformer(sizes, pencil), shard_bytes),
        ("text_encoder", _text_encoder(sizes, pencil), shard_bytes),
        ("video_vae/source", _video_vae(sizes, pencil, root), ONE_FILE),
        ("audio_vae", _audio_vae(sizes, pencil, root), ONE_FILE),
    ):
        began = time.perf_counter()
        files = write_component(root / folder, "model", _on_host(tensors), limit)
        size = sum(path.stat().st_size for path in (root / folder).glob("*.safetensors"))
        seconds = time.perf_counter() - began
        say(f"{folder}: {files} files, {size / 1e9:.2f} GB, {seconds:.1f} s")
    return root


def _write_configs(root: Path, sizes: Sizes, partition: str, seed: int) -> None:
    transformer = {**tiny_configs.transformer(), **sizes.transformer.to_official()}
    for path, content in {
        "model_index.json": tiny_configs.model_index(partition),
        "transformer/config.json": transformer,
        "text_encoder/config.json": sizes.text_encoder,
        "video_vae/config.json": tiny_configs.video_vae(),
        "video_vae/source/config.json": sizes.video_source,
        "audio_vae/config.json": tiny_configs.audio_vae(seed),
        "audio_vae/metadata.json": sizes.audio_metadata,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(json.dumps(content, indent=1))
    write_files(root / "tokenizer", tokenizer_files())
    write_files(root / "processor", processor_files())
    write_files(root / "audio_vae", {"config.yaml": tiny_configs.AUDIO_VAE_YAML})


def _transformer(sizes: Sizes, pencil: Pencil) -> Named:
    config = sizes.transformer

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        dtype = torch.float32 if name.startswith(DIT_FP32_PREFIXES) else torch.bfloat16
        values = pencil.normal(f"transformer.{name}", shape, dtype)
        if not pencil.hollow:
            scale_(name, values, config)
        return values

    return _official(transformer_shapes(config), dit_from_official(config), draw)


def _text_encoder(sizes: Sizes, pencil: Pencil) -> Named:
    config = Qwen3VLConfig(**sizes.text_encoder)
    scale = text_encoder_scale(config.text_config.num_hidden_layers)
    model = build_on_meta(lambda: Qwen3VLForConditionalGeneration(config))
    for name, tensor in model.state_dict().items():
        yield name, pencil.scaled(name, tuple(tensor.shape), torch.bfloat16, scale)


def _video_vae(sizes: Sizes, pencil: Pencil, root: Path) -> Named:
    arguments = official_video_vae_arguments(
        tiny_configs.video_vae(), sizes.video_source, root / "video_vae"
    )
    state = video_autoencoder(arguments).state_dict()
    heads, head_dim = (
        arguments[f"decoder_{name}"] for name in ("num_attention_heads", "attention_head_dim")
    )
    assert isinstance(heads, int)
    assert isinstance(head_dim, int)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    return _official(
        shapes,
        video_vae_from_official(heads, heads * head_dim),
        lambda name, shape: pencil.scaled(name, shape, torch.float32, video_vae_scale),
    )


def _audio_vae(sizes: Sizes, pencil: Pencil, root: Path) -> Named:
    arguments = official_audio_vae_arguments(
        tiny_configs.audio_vae(pencil.seed), sizes.audio_metadata, root / "audio_vae"
    )
    for name, tensor in audio_autoencoder(arguments).state_dict().items():
        if tensor.is_meta:
            shape = tuple(tensor.shape)
            yield name, pencil.scaled(name, shape, torch.float32, audio_vae_scale)
        else:
            yield name, tensor.clone()  # a filter, which the module computes itself


def _official(
    shapes: Mapping[str, tuple[int, ...]],
    key_map: KeyMap,
    draw: Callable[[str, tuple[int, ...]], Tensor],
) -> Named:
    """Draw one group under our names, yield it under the official ones."""
    for group in key_map.groups(shapes):
        values = group.transform.from_ours([draw(name, shapes[name]) for name in group.ours])
        yield from zip(group.checkpoint, values, strict=True)
    for entry in key_map.derived:
        yield entry.name, entry.make()


def _on_host(tensors: Named) -> Named:
    return ((name, value if value.is_meta else value.cpu()) for name, value in tensors)
