"""The transformer: rows of three streams and a time for each row in, data-ward velocities out.

Work that does not change from step to step has methods of its own: `prepare` (text, rotary table,
row indices) once per request, `modulation` (AdaLN tables) once per schedule. `step` is one forward
that uses both. `forward` does all three, by the same code.
"""

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import nn

from minimax_h3.attention.base import AttentionBackend
from minimax_h3.attention.sdpa import SdpaAttention
from minimax_h3.core.constants import Modality
from minimax_h3.dit.adaln import ModulationTable, StepModulation, modulation_table
from minimax_h3.dit.block import Block, Documents
from minimax_h3.dit.embed import TimeEmbedder
from minimax_h3.dit.refiner import Refiner
from minimax_h3.ops.rope import RotaryTable, rotary_table
from minimax_h3.ops.row_ops import REFERENCE, RowOps
from minimax_h3.packing.batch import text_bounds
from minimax_h3.packing.layout import PackedLayout, Span
from minimax_h3.packing.row_times import adaln_rows
from minimax_h3.weights.dit_config import DiTConfig
from minimax_h3.weights.dit_shapes import DIT_FP32_PREFIXES

FP32_MODULES = tuple(prefix.removesuffix(".") for prefix in DIT_FP32_PREFIXES)
"""Modules whose parameters stay fp32 whatever the rest is. Source: model sheet 1.8."""


class Velocities(NamedTuple):
    """Data-ward velocities: the clean sample is `rows + sigma * velocity`.

    Attributes:
        video: fp32 [V, 96], conditions included, in the order of the video rows.
        audio: fp32 [A, 32], conditions included, in the order of the audio rows.
    """

    video: torch.Tensor
    audio: torch.Tensor


@dataclass(frozen=True, eq=False, slots=True)
class PreparedSequence:
    """What stays the same through all steps of a packed sequence.

    Attributes:
        spans: where the rows of each stream lie.
        text: refined text rows [L, hidden].
        rotary: cosines and sines of every row.
        adaln_rows: int64 [S], rows of the blocks' tables.
        video_times, audio_times: int64 [V] and [A], rows of the output norm's tables.
        documents: bounds of the documents, and the attention backend.
    """

    spans: tuple[Span, ...]
    text: torch.Tensor
    rotary: RotaryTable
    adaln_rows: torch.Tensor
    video_times: torch.Tensor
    audio_times: torch.Tensor
    documents: Documents


class FinalNorm(nn.Module):
    """The output norm and its modulation; the two heads follow it."""

    def __init__(self, config: DiTConfig, dtype: torch.dtype) -> None:
        super().__init__()
        width = config.hidden_size
        self.norm = nn.RMSNorm(width, eps=config.final_norm_eps, dtype=dtype)
        self.adaln = nn.Linear(config.time_out_dim, 2 * width, dtype=dtype)


class MiniMaxH3Transformer(nn.Module):
    """One partition's transformer, for inference only.

    Args:
        config: widths and counts.
        dtype: of everything outside `FP32_MODULES`.
    """

    def __init__(self, config: DiTConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        width, video, audio = config.hidden_size, config.video_row_width, config.audio_channels
        self.video_in = nn.Linear(video, width, dtype=torch.float32)
        self.audio_in = nn.Linear(audio, width, dtype=torch.float32)
        self.text_in = nn.Linear(config.text_dim, width, dtype=dtype)
        self.time_embedder = TimeEmbedder(config)
        self.refiner = Refiner(config, dtype)
        self.blocks = nn.ModuleList(Block(config, dtype) for _ in range(config.num_layers))
        self.final = FinalNorm(config, dtype)
        self.video_out = nn.Linear(width, video, dtype=torch.float32)
        self.audio_out = nn.Linear(width, audio, dtype=torch.float32)
        self.requires_grad_(False)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the packed sequence."""
        return self.text_in.weight.dtype

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.text_in.weight.device

    def cast_(self, dtype: torch.dtype) -> "MiniMaxH3Transformer":
        """Convert everything outside `FP32_MODULES`, in place."""
        for name, child in self.named_children():
            if name not in FP32_MODULES:
                child.to(dtype)
        return self

    def modulation(self, times: torch.Tensor) -> ModulationTable:
        """AdaLN tables of distinct times.

        Args:
            times: fp32 [M], any device.
        """
        embedding = self.time_embedder(times.to(self.device))
        projections = [cast("Block", block).adaln for block in self.blocks]
        return modulation_table(embedding, projections, self.final.adaln)

    def refine_text(self, text_features: torch.Tensor, documents: Documents) -> torch.Tensor:
        """Project and refine text.

        Args:
            text_features: [L, text_dim], any dtype and device.
            documents: bounds of the requests within the text rows.

        Returns:
            [L, hidden].
        """
        return self.refiner(self.text_in(text_features.to(self.device, self.dtype)), documents)

    def prepare(
        self,
        text_features: torch.Tensor,
        layout: PackedLayout,
        time_rows: torch.Tensor,
        cu_seqlens: tuple[int, ...],
        attention: AttentionBackend,
        row_ops: RowOps = REFERENCE,
    ) -> PreparedSequence:
        """Do everything that no step changes.

        Args:
            text_features: [L, text_dim], any dtype and device.
            layout: the packed sequence, one request or a batch.
            time_rows: int64 [S], each row's time as a row of the tables that steps will bring.
            cu_seqlens: document bounds of the packed sequence.
            attention: the chosen backend; text is refined once and always without loss.
            row_ops: the chosen row operations.
        """
        config = self.config
        exact = attention if attention.capabilities.lossless else SdpaAttention()
        text = Documents(exact, text_bounds(layout, cu_seqlens), row_ops)
        rotary = rotary_table(layout.positions, config.rope_freqs, config.rope_theta)
        return PreparedSequence(
            spans=layout.spans,
            text=self.refine_text(text_features, text),
            rotary=rotary.to(self.device, self.dtype),
            adaln_rows=adaln_rows(time_rows, layout.token_tags).to(self.device),
            video_times=time_rows[layout.video_indices].to(self.device),
            audio_times=time_rows[layout.audio_indices].to(self.device),
            documents=Documents(attention, cu_seqlens, row_ops),
        )

    def step(
        self,
        video_rows: torch.Tensor,
        audio_rows: torch.Tensor,
        prepared: PreparedSequence,
        modulation: StepModulation,
    ) -> Velocities:
        """One forward; never waits for the device.

        Args:
            video_rows: fp32 [V, 96], conditions included.
            audio_rows: fp32 [A, 32], conditions included.
            prepared: from `prepare`.
            modulation: this step's tables.
        """
        hidden = self._pack(video_rows, audio_rows, prepared)
        self.run_blocks(hidden, prepared, modulation)
        ops, final = prepared.documents.row_ops, (self.final.norm, *modulation.final)
        video = _stream(hidden, prepared.spans, Modality.VIDEO)
        video = ops.norm_modulate(video, *final, prepared.video_times)
        audio = _stream(hidden, prepared.spans, Modality.AUDIO)
        audio = ops.norm_modulate(audio, *final, prepared.audio_times)
        return Velocities(
            self.video_out(video.to(torch.float32)), self.audio_out(audio.to(torch.float32))
        )

    def run_blocks(
        self, hidden: torch.Tensor, prepared: PreparedSequence, modulation: StepModulation
    ) -> None:
        """Pass the residual stream [S, hidden] through all blocks, in place."""
        blocks, rows = [cast("Block", block) for block in self.blocks], prepared.adaln_rows
        entries = [
            block.entry(tables) for block, tables in zip(blocks, modulation.blocks, strict=True)
        ]
        documents = prepared.documents
        normed = documents.row_ops.norm_modulate(hidden, *entries[0], rows)
        for block, tables, following in zip(
            blocks, modulation.blocks, [*entries[1:], None], strict=True
        ):
            normed = block(hidden, normed, tables, rows, prepared.rotary, documents, following)

    def forward(
        self,
        video_rows: torch.Tensor,
        audio_rows: torch.Tensor,
        text_features: torch.Tensor,
        layout: PackedLayout,
        times: torch.Tensor,
        time_index: torch.Tensor,
        cu_seqlens: tuple[int, ...],
        attention: AttentionBackend,
    ) -> Velocities:
        """One forward from scratch, for tests and benchmarks.

        Args:
            video_rows: fp32 [V, 96].
            audio_rows: fp32 [A, 32].
            text_features: [L, text_dim].
            layout: the packed sequence.
            times: fp32 [M], distinct times.
            time_index: int64 [S], each row's time.
            cu_seqlens: document bounds.
            attention: the chosen backend.
        """
        prepared = self.prepare(text_features, layout, time_index, cu_seqlens, attention)
        every_time = torch.arange(times.numel(), device=self.device)
        modulation = self.modulation(times).at(every_time)
        return self.step(video_rows, audio_rows, prepared, modulation)

    def _pack(
        self, video_rows: torch.Tensor, audio_rows: torch.Tensor, prepared: PreparedSequence
    ) -> torch.Tensor:
        """Project the streams and lay their rows out in packed order, [S, hidden]."""
        text = prepared.text
        streams = {
            Modality.VIDEO: self.video_in(video_rows).to(text.dtype),
            Modality.AUDIO: self.audio_in(audio_rows).to(text.dtype),
            Modality.TEXT: text,
        }
        pieces = [
            text.new_zeros(span.rows, text.shape[1])
            if span.stream is None
            else streams[span.stream][span.source_start : span.source_start + span.rows]
            for span in prepared.spans
        ]
        return torch.cat(pieces)


def _stream(hidden: torch.Tensor, spans: tuple[Span, ...], stream: Modality) -> torch.Tensor:
    """The rows of one stream, in its own order; a view where they lie together."""
    pieces = [
        hidden[span.start : span.start + span.rows] for span in spans if span.stream is stream
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
