"""The transformer's forward pass from the model sheet's step list, one row and one head at a time.

Plain tensor operations only: no module, no fused attention, no table. Slow on purpose.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Rows:
    """One packed sequence, described row by row.

    Attributes:
        tags: modality tag of each row.
        streams: "text", "audio", "video" or "pad" for each row.
        positions: fp64 [S, 3].
        times: time of each row.
        documents: row ranges that may see each other.
    """

    tags: Sequence[int]
    streams: Sequence[str]
    positions: torch.Tensor
    times: Sequence[float]
    documents: Sequence[tuple[int, int]]

    def of(self, stream: str) -> list[int]:
        return [row for row, name in enumerate(self.streams) if name == stream]


class ReferenceTransformer:
    """Names and shapes of the weights are those of the serving transformer."""

    def __init__(self, weights: Weights, heads: int, head_dim: int, rope_freqs: int) -> None:
        self.weights = weights
        self.heads, self.head_dim, self.rope_freqs = heads, head_dim, rope_freqs
        self.eps = 1e-5

    def forward(
        self, video: torch.Tensor, audio: torch.Tensor, text: torch.Tensor, rows: Rows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        text_documents = [
            (len([r for r in rows.of("text") if r < a]), len([r for r in rows.of("text") if r < b]))
            for a, b in rows.documents
        ]
        refined = self._refine(self._linear("text_in", text), text_documents)
        hidden = torch.zeros(len(rows.tags), refined.shape[1], dtype=refined.dtype)
        hidden[rows.of("text")] = refined
        hidden[rows.of("video")] = self._linear("video_in", video)
        hidden[rows.of("audio")] = self._linear("audio_in", audio)
        embedded = torch.stack([self._time(t) for t in rows.times])
        layers = len({name.split(".")[1] for name in self.weights if name.startswith("blocks.")})
        for layer in range(layers):
            hidden = self._block(f"blocks.{layer}", hidden, embedded, rows)
        out = self._linear("final.adaln", _silu(embedded))
        shift, scale = out.split(hidden.shape[1], dim=1)
        final = self._norm("final.norm", hidden) * (1 + scale) + shift
        return (
            self._linear("video_out", final[rows.of("video")]),
            self._linear("audio_out", final[rows.of("audio")]),
        )

    def _linear(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        product = rows @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return product if bias is None else product + bias

    def _norm(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        mean_square = (rows * rows).sum(-1, keepdim=True) / rows.shape[-1]
        return rows / torch.sqrt(mean_square + self.eps) * self.weights[f"{name}.weight"]

    def _time(self, time: float) -> torch.Tensor:
        width = self.weights["time_embedder.linear_1.weight"].shape[1]
        dtype = self.weights["time_embedder.linear_1.weight"].dtype
        angles = [time * 10000 ** (-i / (width // 2)) for i in range(width // 2)]
        sinusoid = [math.cos(a) for a in angles] + [math.sin(a) for a in angles]
        hidden = self._linear("time_embedder.linear_1", torch.tensor(sinusoid, dtype=dtype))
        return self._linear("time_embedder.linear_2", _silu(hidden))

    def _refine(self, text: torch.Tensor, documents: list[tuple[int, int]]) -> torch.Tensor:
        layers = {name.split(".")[2] for name in self.weights if name.startswith("refiner.blocks.")}
        for layer in range(len(layers)):
            prefix = f"refiner.blocks.{layer}"
            normed = self._norm(f"{prefix}.norm1", text)
            text = text + self._attention(f"{prefix}.attn", normed, None, documents)
            text = text + self._ffn(f"{prefix}.mlp", self._norm(f"{prefix}.norm2", text))
        return self._norm("refiner.final_norm", text)

    def _block(
        self, prefix: str, hidden: torch.Tensor, embedded: torch.Tensor, rows: Rows
    ) -> torch.Tensor:
        per_row = self._linear(f"{prefix}.adaln", _silu(embedded))
        per_row = per_row.view(len(rows.tags), 3, 6, hidden.shape[1])
        picked = [per_row[row, max(tag, 0)] for row, tag in enumerate(rows.tags)]
        shift1, scale1, gate1, shift2, scale2, gate2 = torch.stack(picked, dim=1)
        normed = self._norm(f"{prefix}.norm1", hidden) * (1 + scale1) + shift1
        attended = self._attention(f"{prefix}.attn", normed, rows.positions, rows.documents)
        hidden = hidden + gate1 * attended
        normed = self._norm(f"{prefix}.norm2", hidden) * (1 + scale2) + shift2
        return hidden + gate2 * self._ffn(f"{prefix}.mlp", normed)

    def _ffn(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        hidden = self._linear(f"{name}.fc1", rows)
        width = hidden.shape[1] // 2
        return self._linear(f"{name}.fc2", _silu(hidden[:, :width]) * hidden[:, width:])

    def _attention(
        self,
        name: str,
        rows: torch.Tensor,
        positions: torch.Tensor | None,
        documents: Sequence[tuple[int, int]],
    ) -> torch.Tensor:
        inner = self.heads * self.head_dim
        q, k, v = self._linear(f"{name}.qkv", rows).split(inner, dim=1)
        out = torch.zeros(rows.shape[0], inner, dtype=rows.dtype)
        for head in range(self.heads):
            part = slice(head * self.head_dim, (head + 1) * self.head_dim)
            query = self._rotate(self._norm(f"{name}.q_norm", q[:, part]), positions)
            key = self._rotate(self._norm(f"{name}.k_norm", k[:, part]), positions)
            for a, b in documents:
                scores = query[a:b] @ key[a:b].T / math.sqrt(self.head_dim)
                out[a:b, part] = torch.softmax(scores, dim=-1) @ v[a:b, part]
        return self._linear(f"{name}.out", out)

    def _rotate(self, rows: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
        if positions is None:
            return rows
        turned = rows.clone()
        half = 3 * self.rope_freqs
        for dim in range(half):
            axis, i = divmod(dim, self.rope_freqs)
            angle = positions[:, axis].to(rows.dtype) * 10000 ** (-i / self.rope_freqs)
            a, b = rows[:, dim], rows[:, dim + half]
            turned[:, dim] = a * torch.cos(angle) - b * torch.sin(angle)
            turned[:, dim + half] = b * torch.cos(angle) + a * torch.sin(angle)
        return turned


def _silu(rows: torch.Tensor) -> torch.Tensor:
    return rows / (1 + torch.exp(-rows))
