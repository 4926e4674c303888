"""Documents to train on: a kind of request, packed and presented by the code that serves it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from build_engines.tiny_tokenizer import tokenizer_files, write_files
from build_engines.train_tiny import model_configs
from build_engines.train_tiny.dit_forward import Place, Rows
from build_engines.train_tiny.references import CLIP_FRAMES, TONE_SAMPLES
from build_engines.train_tiny.text_model import TextModel
from minimax_h3.core.conditions import AUDIO, IMAGE, KEYFRAME, VIDEO, Condition
from minimax_h3.core.constants import (
    AUDIO_FLOW_SHIFT,
    AUDIO_HOP_SAMPLES,
    CANVAS_MULTIPLE,
    TASK_FL2VA,
    TASK_REF2VA,
    TASK_T2VA,
    VAE_TAIL_FRAMES,
    VIDEO_FLOW_SHIFT,
    Modality,
)
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.lengths import align_frames_up, audio_latents_from_frames
from minimax_h3.core.plan import Plan, build_plan
from minimax_h3.core.request import GenerationRequest
from minimax_h3.denoise.session import pack
from minimax_h3.packing.layout import PackedLayout
from minimax_h3.packing.row_times import adaln_rows
from minimax_h3.text.presentation import blocks_of, present_request
from minimax_h3.text.tokenizer import Tokenizer, load_tokenizer
from minimax_h3.text.vision_rules import VisionRules, load_vision_rules

_PROMPT_BYTES = {True: 168, False: 136}  # longest prompt, with references and without
_ROUND = 8  # attention kernels like row counts that divide by it
Ints: TypeAlias = NDArray[np.int64]
_ANCHORS = {"first": 0, "last": -1}

TEXT, FIRST, LAST, BOTH = "text", "first", "last", "both"
PICTURE, VOICE, CLIP = "picture", "voice", "clip"
KEYFRAME_TASKS: dict[str, tuple[str, ...]] = {
    TEXT: (), FIRST: ("first",), LAST: ("last",), BOTH: ("first", "last"),
}  # fmt: skip
REFERENCE_TASKS = (PICTURE, VOICE, CLIP)


@dataclass(frozen=True, slots=True)
class Format:
    """Size of a clip.

    Attributes:
        width, height: pixels.
        num_frames: 17 n + 5.
    """

    width: int
    height: int
    num_frames: int

    @property
    def name(self) -> str:
        """`128x128x124`."""
        return f"{self.width}x{self.height}x{self.num_frames}"


def parse_sizes(text: str) -> tuple[Format, ...]:
    """`128x128x124,192x128x124` to sizes; empty text to none.

    Raises:
        InvalidRequestError: a word of another form, or a size that the model cannot make.
    """
    sizes = []
    for word in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d{2,4})x(\d{2,4})x(\d{1,3})", word)
        width, height, frames = map(int, match.groups()) if match else (0, 0, 0)
        legal = width and not width % CANVAS_MULTIPLE and not height % CANVAS_MULTIPLE
        if not legal or frames != align_frames_up(frames) or frames <= VAE_TAIL_FRAMES:
            raise InvalidRequestError(
                f"size: {word!r} is not legal; legal: WIDTHxHEIGHTxFRAMES, sides multiples of "
                f"{CANVAS_MULTIPLE}, frames 17 n + 5"
            )
        sizes.append(Format(width, height, frames))
    return tuple(sizes)


@dataclass(frozen=True, slots=True)
class Kind:
    """Documents of one task and size; all of them have the same media rows.

    Attributes:
        task: a key of `KEYFRAME_TASKS`, or one of `REFERENCE_TASKS`.
        format: of the target.
    """

    task: str
    format: Format

    @property
    def name(self) -> str:
        """`first 128x128x124`."""
        return f"{self.task} {self.format.name}"

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What a request of this kind brings, after preparation."""
        size = {"width": self.format.width, "height": self.format.height}
        picture = {**size, "num_frames": 1, "presented_frames": 1}
        if self.task in KEYFRAME_TASKS:
            return tuple(
                Condition(KEYFRAME, source, "", **picture, frame_index=_ANCHORS[anchor])
                for source, anchor in enumerate(KEYFRAME_TASKS[self.task])
            )
        image = Condition(IMAGE, 0, "", **picture)
        if self.task == PICTURE:
            return (image,)
        if self.task == VOICE:
            sound = Condition(AUDIO, 1, "", audio_latents=TONE_SAMPLES // AUDIO_HOP_SAMPLES)
            return (image, sound)
        clip = Condition(
            VIDEO, 0, "", **size,
            num_frames=CLIP_FRAMES,
            presented_frames=CLIP_FRAMES,
            audio_latents=audio_latents_from_frames(CLIP_FRAMES),
        )  # fmt: skip
        return (clip,)

    def plan(self, text_rows: int) -> Plan:
        """The plan that serving would make, with this many text rows."""
        conditions = self.conditions
        task = TASK_REF2VA if self.task in REFERENCE_TASKS else TASK_FL2VA
        fields: dict[str, object] = {"prompt": "-", "task": task if conditions else TASK_T2VA}
        if conditions:
            elements = (b"-",) * len(conditions)
            fields["references" if task == TASK_REF2VA else "keyframes"] = elements
        if task == TASK_FL2VA and conditions:
            fields["frame_indices"] = tuple(each.frame_index for each in conditions)
        request = replace(
            GenerationRequest.from_fields({**fields, "width": 128, "height": 128}),
            width=self.format.width,
            height=self.format.height,
            num_frames=self.format.num_frames,
        )
        return build_plan(
            request,
            job_id="",
            alias="",
            text_rows=text_rows,
            flow_shift=VIDEO_FLOW_SHIFT,
            audio_flow_shift=AUDIO_FLOW_SHIFT,
            received_at=0.0,
            conditions=conditions,
        )


@dataclass(frozen=True, slots=True)
class Template:
    """What all documents of a kind with captions of one length have in common.

    Attributes:
        positions: fp32 [S, 3], with the fill behind the text.
        lookup: int64 [S].
        text_held: bool [L].
        text_positions: int64 [3, L].
    """

    positions: Tensor
    lookup: Tensor
    text_held: Tensor
    text_positions: Tensor


class Presenter:
    """Presents and packs documents of one kind.

    Attributes:
        kind: the kind.
        text_rows: columns of a batch's text, L; captions are filled up to them.
        pads: int64 [P], columns that stand for vision features.
        places: media rows in packed order.
    """

    def __init__(self, kind: Kind, text: TextModel) -> None:
        """Settle the shapes.

        Args:
            kind: of the documents.
            text: its positions are taken, its weights are not.
        """
        self.kind = kind
        self._text = text
        tokenizer, rules = _tools()
        self._tokenizer, self._blocks = tokenizer, blocks_of(kind.conditions, rules)
        ids, tags = self.present("x" * _PROMPT_BYTES[kind.task in REFERENCE_TASKS])
        longest, layout = torch.from_numpy(ids), self.layout(tags)
        media = layout.num_rows - len(longest)
        self.text_rows = len(longest) + -(len(longest) + media) % _ROUND
        vision = (longest == text.image_pad) | (longest == text.video_pad)
        self.pads = vision.nonzero()[:, 0]
        self.places = tuple(
            Place(span.stream, span.source_start, span.rows)
            for span in layout.spans
            if span.stream in (Modality.VIDEO, Modality.AUDIO)
        )
        self.held = {
            Modality.VIDEO: layout.num_condition_video_rows,
            Modality.AUDIO: layout.num_condition_audio_rows,
        }
        self._templates: dict[int, Template] = {}

    def present(self, prompt: str) -> tuple[Ints, Ints]:
        """Token ids and modality tags, as `preprocess` makes them."""
        return present_request(prompt, self._blocks, self._tokenizer)

    def layout(self, tags: Ints) -> PackedLayout:
        """The packed sequence, as a session makes it."""
        return pack(self.kind.plan(len(tags)), torch.from_numpy(tags))

    def template(self, token_ids: Ints, tags: Ints) -> Template:
        """The template of a presentation of this length."""
        length = len(token_ids)
        if length not in self._templates:
            layout, fill = self.layout(tags), self.text_rows - length
            lookup = adaln_rows(layout.time_classes, layout.token_tags)
            positions = layout.positions.float()
            self._templates[length] = Template(
                positions=_filled(positions, length, fill),
                lookup=_filled(lookup, length, fill),
                text_held=torch.arange(self.text_rows) < length,
                text_positions=self._text_positions(token_ids),
            )
        return self._templates[length]

    def _text_positions(self, token_ids: Ints) -> Tensor:
        ids = torch.from_numpy(token_ids)
        shown = [block for block in self._blocks if block.sampled_frames]
        grids = {
            name: torch.tensor([block.grid for block in shown if block.is_video is wanted])
            for name, wanted in (("image_grid_thw", False), ("video_grid_thw", True))
            if any(block.is_video is wanted for block in shown)
        }
        found = self._text.positions(ids, grids)
        after = found.max() + 1 + torch.arange(self.text_rows - len(ids))
        return torch.cat((found, after.expand(3, -1)), dim=1)

    def batch(self, items: Sequence[int], prompts: Sequence[str]) -> "DocumentBatch":
        """A batch on the CPU.

        Args:
            items: of the pool, one for each document.
            prompts: of the documents.
        """
        token_ids = torch.zeros(len(items), self.text_rows, dtype=torch.int64)
        templates = []
        for row, prompt in enumerate(prompts):
            ids, tags = self.present(prompt)
            token_ids[row, : len(ids)] = torch.from_numpy(ids)
            templates.append(self.template(ids, tags))
        return DocumentBatch(
            items=torch.tensor(items),
            token_ids=token_ids,
            text_positions=torch.stack([t.text_positions for t in templates], dim=1),
            text_held=torch.stack([t.text_held for t in templates]),
            positions=torch.stack([t.positions for t in templates]),
            lookup=torch.stack([t.lookup for t in templates]),
        )


@dataclass(slots=True)
class DocumentBatch:
    """A batch of documents without their media.

    Attributes:
        items: int64 [B], places in the pool of latents.
        token_ids: int64 [B, L].
        text_positions: int64 [3, B, L].
        text_held: bool [B, L].
        positions: fp32 [B, S, 3].
        lookup: int64 [B, S].
    """

    items: Tensor
    token_ids: Tensor
    text_positions: Tensor
    text_held: Tensor
    positions: Tensor
    lookup: Tensor

    def rows(self, places: tuple[Place, ...]) -> Rows:
        """What the transformer's forward reads of it."""
        return Rows(places, self.text_held, self.positions, self.lookup)

    def to(self, device: torch.device | str) -> "DocumentBatch":
        """The same on another device."""
        return DocumentBatch(
            *(getattr(self, name).to(device, non_blocking=True) for name in self.__slots__)
        )

    def copy_(self, other: "DocumentBatch") -> None:
        """Take over another batch of the same kind, in place."""
        for name in self.__slots__:
            getattr(self, name).copy_(getattr(other, name), non_blocking=True)


def _filled(rows: Tensor, length: int, fill: int) -> Tensor:
    """Rows with a fill of zeros behind the text."""
    return torch.cat((rows[:length], rows.new_zeros(fill, *rows.shape[1:]), rows[length:]))


@cache
def _tools() -> tuple[Tokenizer, VisionRules]:
    """Tokenizer and vision limits, read from the files that the checkpoint will have."""
    with TemporaryDirectory() as folder:
        write_files(Path(folder) / "tokenizer", tokenizer_files())
        write_files(Path(folder) / "processor", model_configs.processor())
        tokenizer = load_tokenizer(Path(folder) / "tokenizer")
        return tokenizer, load_vision_rules(Path(folder) / "processor")
