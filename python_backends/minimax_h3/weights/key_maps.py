"""Checkpoint names and layouts <-> ours, both directions, one declarative rule a tensor family.

`ours` means the names of the module that is loaded: our transformer, the diffusers autoencoders,
and the truncated text encoder. Source: model sheet section 6.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from minimax_h3.weights.dit_config import DiTConfig
from minimax_h3.weights.manifest import OFFICIAL, CheckpointManifest
from minimax_h3.weights.vae_config import video_vae_arguments

_PLACEHOLDERS = {"i": r"\d+", "j": r"\d+", "p": "weight|bias", "rest": ".+"}


class Transform(Protocol):
    """Exact rearrangement of rows between the tensors of one rule; works on meta tensors too."""

    def to_ours(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Checkpoint tensors -> ours."""
        ...

    def from_ours(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Inverse of `to_ours`."""
        ...


class Same:
    """The tensor as it is."""

    def to_ours(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Unchanged."""
        return list(tensors)

    def from_ours(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Unchanged."""
        return list(tensors)


class SwapHalves:
    """[gate; value] <-> [value; gate]. Source: model sheet 8, trap 2."""

    def to_ours(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Exchange the two halves of the rows."""
        first, second = tensors[0].chunk(2, dim=0)
        return [torch.cat([second, first])]

    def from_ours(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Exchanging twice is the identity."""
        return self.to_ours(tensors)


class JoinThree:
    """Three tensors q, k, v <-> one [Q; K; V]."""

    def to_ours(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Stack the rows."""
        return [torch.cat(list(tensors))]

    def from_ours(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Cut the rows in three."""
        return list(tensors[0].chunk(3, dim=0))


@dataclass(frozen=True, slots=True)
class DeinterleaveHeads:
    """Rows [head 0: q k v][head 1: q k v]... <-> [Q; K; V]. Source: model sheet 6.1, trap 1.

    Attributes:
        heads: attention heads.
        split: ours are three tensors instead of one.
    """

    heads: int
    split: bool = False

    def to_ours(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Gather the rows of all heads by role."""
        by_role = self._exchange(tensors[0], self.heads, 3)
        return list(by_role.chunk(3, dim=0)) if self.split else [by_role]

    def from_ours(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Gather the rows of all roles by head."""
        return [self._exchange(torch.cat(list(tensors)), 3, self.heads)]

    @staticmethod
    def _exchange(rows: Tensor, outer: int, inner: int) -> Tensor:
        grouped = rows.reshape(outer, inner, -1, *rows.shape[1:])
        return grouped.transpose(0, 1).reshape(rows.shape)


@dataclass(frozen=True, slots=True)
class Rule:
    """Names in the checkpoint, names of ours, and how their tensors relate.

    `{i}` and `{j}` stand for a number, `{p}` for `weight` or `bias`, `{rest}` for anything.
    """

    checkpoint: tuple[str, ...]
    ours: tuple[str, ...]
    transform: Transform = field(default_factory=Same)


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """One rule applied to concrete names."""

    checkpoint: tuple[str, ...]
    ours: tuple[str, ...]
    transform: Transform


@dataclass(frozen=True, slots=True)
class Derived:
    """A checkpoint tensor that ours does not store, because its value follows from the config.

    Attributes:
        name: its name in the checkpoint.
        make: computes it.
        accepts: whether a stored tensor is what `make` gives.
    """

    name: str
    make: Callable[[], Tensor]
    accepts: Callable[[Tensor], bool]


def _pattern(template: str) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", template)
    return re.compile(
        "".join(
            f"(?P<{piece}>{_PLACEHOLDERS[piece]})" if index % 2 else re.escape(piece)
            for index, piece in enumerate(pieces)
        )
    )


class KeyMap:
    """An ordered list of rules; the first rule that matches a name decides."""

    def __init__(self, rules: Sequence[Rule], derived: Sequence[Derived] = ()) -> None:
        self.rules = tuple(rules)
        self.derived = tuple(derived)
        self._ours = [([_pattern(name) for name in rule.ours], rule) for rule in rules]
        self._checkpoint = [([_pattern(name) for name in rule.checkpoint], rule) for rule in rules]

    def groups(self, our_names: Iterable[str]) -> list[KeyGroup]:
        """The groups that produce `our_names`, in that order."""
        return _groups(list(our_names), self._ours, lambda rule: rule.ours)

    def to_ours(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Translate a whole checkpoint; derived tensors are left out."""
        skipped = {entry.name for entry in self.derived}
        names = [name for name in tensors if name not in skipped]
        result: dict[str, Tensor] = {}
        for group in _groups(names, self._checkpoint, lambda rule: rule.checkpoint):
            values = group.transform.to_ours([tensors[name] for name in group.checkpoint])
            result |= zip(group.ours, values, strict=True)
        return result

    def from_ours(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Inverse of `to_ours`; derived tensors are computed."""
        result: dict[str, Tensor] = {}
        for group in self.groups(tensors):
            values = group.transform.from_ours([tensors[name] for name in group.ours])
            result |= zip(group.checkpoint, values, strict=True)
        return result | {entry.name: entry.make() for entry in self.derived}


def _groups(
    names: list[str],
    patterns: Sequence[tuple[Sequence[re.Pattern[str]], Rule]],
    side: Callable[[Rule], tuple[str, ...]],
) -> list[KeyGroup]:
    result, taken = [], set[str]()
    for name in names:
        for (first, *others), rule in patterns:
            if any(pattern.fullmatch(name) for pattern in others):
                break  # the first name of its group brings it, and no later rule may take it
            match = first.fullmatch(name)
            if match:
                values = match.groupdict()
                taken |= {template.format(**values) for template in side(rule)}
                checkpoint = tuple(template.format(**values) for template in rule.checkpoint)
                ours = tuple(template.format(**values) for template in rule.ours)
                result.append(KeyGroup(checkpoint, ours, rule.transform))
                break
    unmatched = [name for name in names if name not in taken]
    if unmatched:
        raise KeyError(f"no rule for {', '.join(unmatched[:20])}")
    return result


def _rename(pairs: Mapping[str, str]) -> list[Rule]:
    return [Rule((checkpoint,), (ours,)) for checkpoint, ours in pairs.items()]


def rope_inv_freq(config: DiTConfig) -> Tensor:
    """Rotary frequencies of one axis, fp32 [rope_freqs]. Source: model sheet 1.5."""
    exponents = torch.arange(0, 2 * config.rope_freqs, 2, dtype=torch.float32, device="cpu")
    return 1.0 / config.rope_theta ** (exponents / (2 * config.rope_freqs))


def dit_from_official(config: DiTConfig) -> KeyMap:
    """Official transformer names -> ours. Source: model sheet 6.1."""
    interleaved = DeinterleaveHeads(config.num_heads)
    rules = _rename(
        {
            "video_patch_proj.{p}": "video_in.{p}",
            "audio_patch_proj.{p}": "audio_in.{p}",
            "condition_proj.{p}": "text_in.{p}",
            "time_embedder.proj_in.{p}": "time_embedder.linear_1.{p}",
            "time_embedder.proj_out.{p}": "time_embedder.linear_2.{p}",
            "token_refiner.final_norm.weight": "refiner.final_norm.weight",
            "final_layer.norm.weight": "final.norm.weight",
            "final_layer.adaln_proj.linear.{p}": "final.adaln.{p}",
            "final_layer.video_out.{p}": "video_out.{p}",
            "final_layer.audio_out.{p}": "audio_out.{p}",
            "blocks.{i}.adaln_proj.linear.{p}": "blocks.{i}.adaln.{p}",
        }
    )
    for theirs, ours in (
        ("blocks.{i}", "blocks.{i}"),
        ("token_refiner.blocks.{i}", "refiner.blocks.{i}"),
    ):
        rules.append(
            Rule((f"{theirs}.attn.qkv_proj.weight",), (f"{ours}.attn.qkv.weight",), interleaved)
        )
        rules += _rename(
            {
                f"{theirs}.norm{{j}}.weight": f"{ours}.norm{{j}}.weight",
                f"{theirs}.attn.q_norm.weight": f"{ours}.attn.q_norm.weight",
                f"{theirs}.attn.k_norm.weight": f"{ours}.attn.k_norm.weight",
                f"{theirs}.attn.out_proj.weight": f"{ours}.attn.out.weight",
                f"{theirs}.mlp.fc{{j}}.weight": f"{ours}.mlp.fc{{j}}.weight",
            }
        )
    expected = rope_inv_freq(config)
    inv_freq = Derived(
        "rope.inv_freq", lambda: expected.clone(), lambda stored: torch.equal(stored, expected)
    )
    return KeyMap(rules, [inv_freq])


def dit_from_diffusers() -> KeyMap:
    """Diffusers transformer names -> ours. Source: model sheet 6.1."""
    rules = _rename(
        {
            "proj_in.{p}": "video_in.{p}",
            "audio_proj_in.{p}": "audio_in.{p}",
            "context_embedder.{p}": "text_in.{p}",
            "time_embedder.{rest}": "time_embedder.{rest}",
            "token_refiner.final_norm.weight": "refiner.final_norm.weight",
            "norm_out.norm.weight": "final.norm.weight",
            "norm_out.linear.{p}": "final.adaln.{p}",
            "proj_out.{p}": "video_out.{p}",
            "audio_proj_out.{p}": "audio_out.{p}",
            "transformer_blocks.{i}.adaln_proj.linear.{p}": "blocks.{i}.adaln.{p}",
        }
    )
    for theirs, ours in (
        ("transformer_blocks.{i}", "blocks.{i}"),
        ("token_refiner.refiner_blocks.{i}", "refiner.blocks.{i}"),
    ):
        separate = tuple(f"{theirs}.attn.to_{role}.weight" for role in "qkv")
        rules += [
            Rule(separate, (f"{ours}.attn.qkv.weight",), JoinThree()),
            Rule((f"{theirs}.ff.net.0.proj.weight",), (f"{ours}.mlp.fc1.weight",), SwapHalves()),
            *_rename(
                {
                    f"{theirs}.norm{{j}}.weight": f"{ours}.norm{{j}}.weight",
                    f"{theirs}.attn.norm_q.weight": f"{ours}.attn.q_norm.weight",
                    f"{theirs}.attn.norm_k.weight": f"{ours}.attn.k_norm.weight",
                    f"{theirs}.attn.to_out.0.weight": f"{ours}.attn.out.weight",
                    f"{theirs}.ff.net.2.weight": f"{ours}.mlp.fc2.weight",
                }
            ),
        ]
    return KeyMap(rules)


def video_vae_from_official(heads: int, width: int) -> KeyMap:
    """Official video autoencoder names -> diffusers module names. Source: model sheet 6.2.

    Args:
        heads: attention heads of the decoder.
        width: width of the decoder, heads * head dim.
    """
    block = "decoder.transformer_blocks.{i}"
    separate = tuple(f"{block}.attn.to_{role}.{{p}}" for role in "qkv")
    rules = [
        Rule((f"{block}.attn.to_qkv.{{p}}",), separate, DeinterleaveHeads(heads, split=True)),
        Rule((f"{block}.ff.w1.{{p}}",), (f"{block}.ff.net.0.proj.{{p}}",), SwapHalves()),
        *_rename(
            {
                f"{block}.ff.w2.{{p}}": f"{block}.ff.net.2.{{p}}",
                f"{block}.attn.to_out.{{p}}": f"{block}.attn.to_out.0.{{p}}",
                "decoder.x_embedder.{p}": "decoder.proj_in.{p}",
                "encoder.down.{i}.downsample.conv.{p}": (
                    "encoder.down_blocks.{i}.downsamplers.0.conv.{p}"
                ),
                "encoder.down.{i}.block.{j}.nin_shortcut.{p}": (
                    "encoder.down_blocks.{i}.resnets.{j}.conv_shortcut.{p}"
                ),
                "encoder.down.{i}.block.{j}.{rest}": "encoder.down_blocks.{i}.resnets.{j}.{rest}",
                "{rest}": "{rest}",
            }
        ),
    ]
    mask = Derived(
        # Left over from training; its shape is not used anywhere, so only its value is checked.
        "decoder.mask_token",
        lambda: torch.zeros(1, 1, width),
        lambda stored: not bool(stored.any()),
    )
    return KeyMap(rules, [mask])


def dit_keys(manifest: CheckpointManifest) -> KeyMap:
    """The transformer's map for the manifest's layout."""
    if manifest.layout == OFFICIAL:
        return dit_from_official(manifest.dit_config)
    return dit_from_diffusers()


def video_vae_keys(manifest: CheckpointManifest) -> KeyMap:
    """The video autoencoder's map for the manifest's layout."""
    if manifest.layout != OFFICIAL:
        return unchanged()
    arguments = video_vae_arguments(manifest)
    heads, head_dim = (
        arguments[f"decoder_{name}"] for name in ("num_attention_heads", "attention_head_dim")
    )
    assert isinstance(heads, int)
    assert isinstance(head_dim, int)
    return video_vae_from_official(heads, heads * head_dim)


def unchanged() -> KeyMap:
    """Names and tensors are already ours (audio autoencoder, diffusers autoencoders)."""
    return KeyMap(_rename({"{rest}": "{rest}"}))


def text_encoder_from_stock() -> KeyMap:
    """Stock Qwen3-VL names -> the truncated encoder. Source: model sheet 6.2."""
    return KeyMap(_rename({"lm_head.weight": "lm_head.weight", "model.{rest}": "{rest}"}))
