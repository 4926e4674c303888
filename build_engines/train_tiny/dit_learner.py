"""Training of text encoder and transformer: rectified flow on pools of encoded documents."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from build_engines.train_tiny import model_configs
from build_engines.train_tiny.captions import says_bounce
from build_engines.train_tiny.dit_files import (
    TEXT,
    TRANSFORMER,
    resume_text,
    resume_transformer,
    save_text,
    save_transformer,
)
from build_engines.train_tiny.dit_forward import Rows, velocities
from build_engines.train_tiny.dit_ops import PLAIN, DitOps
from build_engines.train_tiny.documents import (
    KEYFRAME_TASKS,
    REFERENCE_TASKS,
    DocumentBatch,
    Format,
    Kind,
    Presenter,
)
from build_engines.train_tiny.guidance import BARE_SHARE, without_captions, without_references
from build_engines.train_tiny.latent_pool import Pool
from build_engines.train_tiny.text_model import Seen, TextModel
from minimax_h3.core.constants import (
    AUDIO_CONDITION_TIME,
    CONDITION_TIME,
    Modality,
)
from minimax_h3.dit.model import MiniMaxH3Transformer

_MEDIA = (Modality.VIDEO, Modality.AUDIO)
_KEYFRAME_SHARES = {"text": 0.7, "first": 0.1, "last": 0.1, "both": 0.1}
_REFERENCE_SHARES = {"picture": 0.4, "voice": 0.35, "clip": 0.25}
_NO_ROWS = dict.fromkeys(_MEDIA, 0)
_KINDS_CYCLE = 997  # steps after which the order of kinds comes again
_EVALUATION_SEED = 5


class TextAndTransformer(nn.Module):
    """Both networks that are trained together, fp32 parameters on the CPU."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.text = TextModel(seed)
        torch.manual_seed(seed + 1)
        self.transformer = MiniMaxH3Transformer(model_configs.DIT)
        self.transformer.requires_grad_(True)
        _begin(self.transformer)

    def resume(self, folder: Path) -> None:
        """Fill both from a folder of an earlier piece.

        Raises:
            CheckpointError: there is nothing to read.
        """
        resume_text(self.text, folder / TEXT)
        resume_transformer(self.transformer, folder / TRANSFORMER)

    def save(self, folder: Path) -> None:
        """Write both in the official layout."""
        save_text(self.text, folder / TEXT)
        save_transformer(self.transformer, folder / TRANSFORMER)


@torch.no_grad()
def _begin(model: MiniMaxH3Transformer) -> None:
    """Branches begin closed and velocities at 0: the gates' weights are 0, and the heads' too."""
    for name, parameter in model.named_parameters():
        if (
            name.endswith("adaln.weight")
            or name.startswith(("video_out.", "audio_out."))
            or name.endswith("bias")
        ):
            parameter.zero_()
        elif parameter.ndim == 2:
            parameter.normal_(std=1.0 / math.sqrt(parameter.shape[1]))


@dataclass(slots=True)
class Source:
    """Documents of one kind.

    Attributes:
        presenter: shapes and templates.
        pool: media on the device.
        visual: condition rows of the pool that this kind uses.
        pads: features of the pool that this kind uses.
        columns: int64 on the device, where the features go.
        bouncing: numbers of the pool's documents that bounce.
    """

    presenter: Presenter
    pool: Pool
    visual: slice
    pads: slice
    columns: Tensor
    bouncing: NDArray[np.int64]


@dataclass(slots=True)
class LearnerOptions:
    """What a learner is made with.

    Attributes:
        seed: of the data.
        batch: documents a step.
        shares: share of the steps of each format.
        evaluation: held-out documents of each kind.
        bouncing: least share of documents that bounce, the only ones with clicks; one in four does
            by chance.
        guidance: weight of what prompt and references change, below 1; see `guidance`.
    """

    seed: int = 0
    batch: int = 32
    shares: Mapping[Format, float] = field(default_factory=dict)
    evaluation: int = 32
    bouncing: float = 0.0
    guidance: float = 0.0


class DitLearner:
    """Learner of text encoder and transformer; see `pieces.Learner`."""

    def __init__(
        self,
        module: TextAndTransformer,
        device: torch.device,
        pools: Mapping[tuple[Format, str], Pool],
        held_out: Mapping[tuple[Format, str], Pool],
        options: LearnerOptions,
        ops: DitOps = PLAIN,
    ) -> None:
        """Take networks and documents.

        Args:
            module: moved to the device.
            device: where to train; on a GPU products are bf16.
            pools: by format and task: keyframe pools are named `text`, others by their task.
            held_out: the same for evaluations; may have fewer entries.
            options: see there.
            ops: of the transformer's steps; evaluations are too few to compile for.
        """
        self.module = module.to(device)
        self._device, self._options, self._ops = device, options, ops
        self._sources = self._prepared(pools)
        self._held_out = self._prepared(held_out)
        names = list(self._sources)
        weights = np.array([self._share(name) for name in names])
        order = np.random.default_rng(options.seed)
        self._order = [names[i] for i in order.choice(len(names), _KINDS_CYCLE, p=weights)]

    def _share(self, name: str) -> float:
        kind = self._sources[name].presenter.kind
        shares = {**_KEYFRAME_SHARES, **_REFERENCE_SHARES}
        total = sum(
            shares[source.presenter.kind.task] * self._format_share(source.presenter.kind.format)
            for source in self._sources.values()
        )
        return shares[kind.task] * self._format_share(kind.format) / total

    def _format_share(self, form: Format) -> float:
        return self._options.shares.get(form, 1.0)

    def _prepared(self, pools: Mapping[tuple[Format, str], Pool]) -> dict[str, Source]:
        sources: dict[str, Source] = {}
        for (form, task), pool in pools.items():
            tasks = (task,) if task in REFERENCE_TASKS else tuple(KEYFRAME_TASKS)
            for each in tasks:
                kind = Kind(each, form)
                # Rotary positions come from a copy of the text model's rules on the CPU.
                presenter = Presenter(kind, self.module.text)
                sources[kind.name] = Source(
                    presenter,
                    pool,
                    _slot(each, pool.visual.shape[1]),
                    _slot(each, pool.features.shape[1]),
                    presenter.pads.to(self._device),
                    np.flatnonzero([says_bounce(prompts[-1]) for prompts in pool.prompts]),
                )
        return sources

    def kind_of(self, step: int) -> str:
        """Kinds by their shares, in an order that the seed fixes."""
        return self._order[step % _KINDS_CYCLE]

    def draw(self, kind: str, step: int) -> DocumentBatch:
        """Documents of the pool, each under one of its captions."""
        source = self._sources[kind]
        rng = np.random.default_rng([self._options.seed, step])
        prompts = source.pool.prompts
        items = self._items(source, rng).tolist()
        chosen = [prompts[item][int(rng.integers(len(prompts[item])))] for item in items]
        return source.presenter.batch(items, chosen)

    def _items(self, source: Source, rng: np.random.Generator) -> NDArray[np.int64]:
        """Numbers of documents; which of them are made to bounce has nothing to do with the noise.

        A weight on the rows of clicks would make the model expect more clicks than there are; more
        prompts that ask for them do not.
        """
        count = self._options.batch
        items = rng.integers(len(source.pool.prompts), size=count)
        if not self._options.bouncing or not len(source.bouncing):
            return items
        chosen = rng.random(count) < self._options.bouncing
        return np.where(chosen, rng.choice(source.bouncing, count), items)

    def losses(self, kind: str, batch: DocumentBatch, /) -> dict[str, Tensor]:
        """Squared error of the velocities of target rows, picture and sound."""
        bare = None
        if self._options.guidance:
            bare = torch.rand(len(batch.items), device=self._device) < BARE_SHARE
        return self._losses(self._sources[kind], batch, self._ops, bare=bare)

    def _losses(
        self,
        source: Source,
        batch: DocumentBatch,
        ops: DitOps,
        generator: torch.Generator | None = None,
        bare: Tensor | None = None,
    ) -> dict[str, Tensor]:
        count = len(batch.items)
        # One noise level in each part of the range: the mean over a batch varies less.
        jitter = torch.rand(count, device=self._device, generator=generator)
        points = (torch.arange(count, device=self._device) + jitter) / count
        sigmas = {
            Modality.VIDEO: shifted(points, model_configs.SIGMA_SHIFTS["video"]),
            Modality.AUDIO: shifted(points, model_configs.SIGMA_SHIFTS["audio"]),
        }
        clean = self._clean(source, batch.items)
        noise = {
            stream: torch.randn(rows.shape, device=self._device, generator=generator)
            for stream, rows in clean.items()
        }
        given, wanted = {}, {}
        for stream in _MEDIA:
            held = source.presenter.held[stream]
            level = held_sigmas(stream, held, clean[stream].shape[1], sigmas[stream])
            given[stream] = clean[stream] + level[..., None] * (noise[stream] - clean[stream])
            wanted[stream] = (clean[stream] - noise[stream])[:, held:]
        times = class_times(1 - sigmas[Modality.VIDEO], 1 - sigmas[Modality.AUDIO])
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._on_gpu):
            text = self.module.text(
                batch.token_ids, batch.text_positions, source.columns, self._seen(source, batch)
            )
            rows = batch.rows(source.presenter.places)
            found = self._velocities(source, rows, text, given, times, ops, bare)
        losses = {stream: (found[stream] - wanted[stream]).square() for stream in _MEDIA}
        video, audio = (losses[stream].mean() for stream in _MEDIA)
        return {"total": video + audio, "video": video, "audio": audio}

    def _velocities(
        self,
        source: Source,
        rows: Rows,
        text: Tensor,
        given: dict[Modality, Tensor],
        times: Tensor,
        ops: DitOps,
        bare: Tensor | None,
    ) -> dict[Modality, Tensor]:
        """Velocities of target rows, less what guidance adds to their target.

        Args:
            source: of the documents.
            rows: of the batch.
            text: features.
            given: noised streams.
            times: of the classes.
            ops: of the transformer.
            bare: bool [B], documents that are trained without prompt and references; none if None.
        """
        held, weight = source.presenter.held, self._options.guidance
        references = held if source.presenter.kind.task in REFERENCE_TASKS else _NO_ROWS

        def run(bare: Tensor | None) -> dict[Modality, Tensor]:
            shown, streams = rows, given
            if bare is not None:
                shown = without_captions(rows, bare)
                streams = without_references(given, references, bare)
            found = velocities(self.module.transformer, shown, text, streams, times, ops)
            return {stream: found[stream][:, held[stream] :] for stream in _MEDIA}

        found = run(bare)
        if not weight:
            return found
        every = torch.ones(len(times), dtype=torch.bool, device=self._device)
        ground = run(every)  # detached below: without gradients all functions would compile twice
        return {  # of a bare document both are the same, so its target is the true one
            stream: found[stream] - weight * (found[stream] - ground[stream]).detach()
            for stream in _MEDIA
        }

    @property
    def _on_gpu(self) -> bool:
        return self._device.type == "cuda"

    def _clean(self, source: Source, items: Tensor) -> dict[Modality, Tensor]:
        pool = source.pool
        visual = pool.visual[items][:, source.visual]
        return {
            Modality.VIDEO: torch.cat((visual, pool.video[items]), dim=1).float(),
            Modality.AUDIO: torch.cat((pool.sound[items], pool.audio[items]), dim=1).float(),
        }

    def _seen(self, source: Source, batch: DocumentBatch) -> Seen | None:
        if not len(source.columns):
            return None
        features = source.pool.features[batch.items][:, source.pads]
        return Seen(features, source.pool.taps[batch.items][:, :, source.pads])

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Losses on held-out documents under fixed noise."""
        figures: dict[str, float] = {}
        losses: list[tuple[float, float]] = []
        for name, source in self._held_out.items():
            items = list(range(min(self._options.evaluation, len(source.pool.prompts))))
            prompts = [source.pool.prompts[item][0] for item in items]
            generator = torch.Generator(self._device).manual_seed(_EVALUATION_SEED)
            batch = source.presenter.batch(items, prompts).to(self._device)
            found = self._losses(source, batch, PLAIN, generator)
            figures[name] = float(found["total"])
            losses.append((float(found["video"]), float(found["audio"])))
        figures["video"], figures["audio"] = map(float, np.mean(losses, axis=0))
        return {**figures, "score": -(figures["video"] + figures["audio"])}

    def save(self, folder: Path) -> None:
        """Write both networks."""
        self.module.save(folder)


def shifted(points: Tensor, shift: float) -> Tensor:
    """Noise levels of points in [0, 1]; the rule of `SigmaSchedule.build`."""
    return shift * points / (1 + (shift - 1) * points)


def class_times(video: Tensor, audio: Tensor) -> Tensor:
    """Times of each class, [B, 4]: `packing.row_times.class_times` for a batch on the device."""
    return torch.stack(
        (
            video,
            audio,
            video.clamp(min=CONDITION_TIME),
            torch.full_like(video, AUDIO_CONDITION_TIME),
        ),
        dim=-1,
    )


def held_sigmas(stream: Modality, held: int, rows: int, sigma: Tensor) -> Tensor:
    """Noise level of each row, [B, rows]: conditions keep theirs, targets follow the schedule."""
    fixed = 1 - (CONDITION_TIME if stream is Modality.VIDEO else AUDIO_CONDITION_TIME)
    levels = sigma[:, None].expand(-1, rows).clone()
    levels[:, :held] = fixed
    return levels


def _slot(task: str, size: int) -> slice:
    """Which conditions of a keyframe pool a task takes; the first half is the first frame."""
    if task == "text":
        return slice(0, 0)
    if task == "first":
        return slice(0, size // 2)
    if task == "last":
        return slice(size // 2, size)
    return slice(0, size)
