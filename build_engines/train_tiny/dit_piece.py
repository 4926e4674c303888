"""One piece of training of text encoder and transformer: pools first, then steps."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from build_engines.tiny_checkpoint import PARTITIONS
from build_engines.train_tiny.batches import HELD_OUT_SEED
from build_engines.train_tiny.dit_learner import DitLearner, LearnerOptions, TextAndTransformer
from build_engines.train_tiny.dit_ops import PLAIN, DitOps, compiled_ops
from build_engines.train_tiny.documents import REFERENCE_TASKS, Format, parse_sizes
from build_engines.train_tiny.latent_pool import Encoders, Pool, fill_pool
from build_engines.train_tiny.pieces import Log, Piece, run_piece
from minimax_h3.core.errors import InvalidRequestError

FORMATS = {
    Format(128, 128, 124): 0.55,
    Format(192, 128, 124): 0.25,
    Format(128, 128, 107): 0.1,
    Format(128, 128, 141): 0.1,
}
"""Share of the steps of each size."""
FL2VA, REF2VA = PARTITIONS
_REFERENCE_FORMATS = (Format(128, 128, 124), Format(192, 128, 124))
_FIRST_SEED = 50_000  # no other set of scenes draws from here on
_SEEDS_A_PIECE = 100
_HELD_OUT = 32
_POOL = 40_000


@dataclass(frozen=True, slots=True)
class DitPiece:
    """Settings besides those of every piece.

    Attributes:
        partition: `FL2VA` for text and keyframes; `Ref2VA` for references, where the text encoder
            stays as it is.
        vaes: folder with `video_vae/` and `audio_vae/`.
        resume: folder of an earlier piece, or of the other partition's.
        keep_text: train the transformer alone, so that both partitions can be trained at the same
            time on the same text encoder; the second partition always does.
        pool_seconds: of the piece that go into encoding clips.
        pool: most encoded clips.
        batch: documents a step.
        formats: share of each size; the trained ones if empty.
        held_out: documents of each kind in an evaluation.
        bouncing: least share of documents that bounce.
        guidance: weight of what prompt and references change, below 1; see `guidance`.
    """

    partition: str
    vaes: Path
    resume: Path | None = None
    keep_text: bool = False
    pool_seconds: float = 60.0
    pool: int = _POOL
    batch: int = 32
    formats: tuple[tuple[Format, float], ...] = ()
    held_out: int = _HELD_OUT
    bouncing: float = 0.0
    guidance: float = 0.0


def parse_formats(text: str) -> tuple[tuple[Format, float], ...]:
    """`128x128x124:0.8,192x128x124:0.2` to sizes and shares; empty text to none.

    Raises:
        InvalidRequestError: a word of another form, or a size that the model cannot make.
    """
    formats = []
    for word in filter(None, text.split(",")):
        size, _, share = word.partition(":")
        if not re.fullmatch(r"\d*\.?\d+", share):
            raise InvalidRequestError(f"--formats: {word!r} is not legal; legal: WxHxF:SHARE")
        formats += [(form, float(share)) for form in parse_sizes(size)]
    return tuple(formats)


def run_dit_piece(
    settings: DitPiece,
    piece: Piece,
    folder: Path,
    device: torch.device,
    *,
    use_graphs: bool,
    say: Callable[[str], None] = print,
) -> Log:
    """Fill the pools, train, and keep the best averaged weights.

    Args:
        settings: of the networks and documents.
        piece: of the steps; its seconds include the filling of the pools.
        folder: gets `text_encoder/`, `transformer/`, curves and `training.json`.
        device: where to train.
        use_graphs: replay steps as CUDA graphs.
        say: gets lines of the log.

    Raises:
        CheckpointError: an autoencoder or the folder to resume from is missing.
        FloatingPointError: the loss is not finite.
    """
    began = time.monotonic()
    module = TextAndTransformer(piece.seed)
    if settings.resume is not None:
        module.resume(settings.resume)
    if settings.keep_text or settings.partition == REF2VA:
        module.text.requires_grad_(False)  # both partitions share it
    encoders = Encoders(settings.vaes, module.text.to(device), device)
    formats = dict(settings.formats or FORMATS.items())
    held_out = {
        key: fill_pool(encoders, *key, HELD_OUT_SEED, settings.held_out, chunk=8)
        for key in list(_pool_keys(settings.partition, formats))[: len(REFERENCE_TASKS)]
    }
    pools = _pools(settings, formats, piece.seed, encoders, say)
    ops = compiled_ops() if device.type == "cuda" else PLAIN
    learner = DitLearner(
        module,
        device,
        pools,
        held_out,
        LearnerOptions(
            piece.seed,
            settings.batch,
            formats,
            settings.held_out,
            settings.bouncing,
            settings.guidance,
        ),
        ops,
    )
    del encoders
    left = piece.seconds - (time.monotonic() - began)
    say(f"{max(left, 0.0):.0f} s are left for steps")
    log = run_piece(
        learner, replace(piece, seconds=max(left, 1.0)), folder, use_graphs=use_graphs, say=say
    )
    _write_facts(settings, piece, pools, log, ops, folder)
    return log


def _pool_keys(partition: str, formats: dict[Format, float]) -> dict[tuple[Format, str], float]:
    """Pools and their shares of the encoding time."""
    if partition == FL2VA:
        return {(form, "text"): share for form, share in formats.items()}
    usable = {form: formats[form] for form in _REFERENCE_FORMATS if form in formats} or formats
    return {(form, task): share for form, share in usable.items() for task in REFERENCE_TASKS}


def _pools(
    settings: DitPiece,
    formats: dict[Format, float],
    seed: int,
    encoders: Encoders,
    say: Callable[[str], None],
) -> dict[tuple[Format, str], Pool]:
    keys = _pool_keys(settings.partition, formats)
    total = sum(keys.values())
    return {
        key: fill_pool(
            encoders,
            *key,
            _FIRST_SEED + _SEEDS_A_PIECE * seed + number,
            max(1, round(settings.pool * share / total)),
            seconds=settings.pool_seconds * share / total,
            say=say,
        )
        for number, (key, share) in enumerate(keys.items())
    }


def _write_facts(
    settings: DitPiece,
    piece: Piece,
    pools: dict[tuple[Format, str], Pool],
    log: Log,
    ops: DitOps,
    folder: Path,
) -> None:
    """What the model card says about this piece."""
    first, last = log.steps[0], log.steps[-1]
    steps = int(last["step"]) + 1
    facts = {
        "partition": settings.partition,
        "resumed": settings.resume is not None,
        "seed": piece.seed,
        "peak_rate": piece.peak_rate,
        "batch": settings.batch,
        "bouncing": settings.bouncing,
        "guidance": settings.guidance,
        "compiled": ops.compiled,
        "steps": steps,
        "seconds": last["seconds"],
        "step_ms": 1000 * (last["seconds"] - first["seconds"]) / max(1, steps - 1),
        "documents": steps * settings.batch,
        "encoded_clips": sum(len(pool.prompts) for pool in pools.values()),
        "held_out": log.evaluations[-1],
        "best_score": max(entry["score"] for entry in log.evaluations),
    }
    (folder / "training.json").write_text(json.dumps(facts, indent=1) + "\n")
