"""One piece that lets the encoder of a trained audio autoencoder hear clicks.

Everything but the small network of `click_channels` is computed once, so a step takes milliseconds
on one core. The decoder learns to make clicks of the new latents afterwards, in a piece of its own.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from build_engines.train_tiny.architecture import new_audio_vae
from build_engines.train_tiny.click_channels import (
    PLACES,
    ClickNetwork,
    clear_channels,
    click_features,
    last_projection,
    latents_behind,
    spare_channels,
    trunk,
    write_network,
)
from build_engines.train_tiny.click_code import click_code, is_near, unused_directions
from build_engines.train_tiny.click_excerpts import (
    HELD_OUT_LATENTS,
    ExcerptKind,
    Excerpts,
    held_out_chunks,
    joined,
    sounds,
    training_chunks,
)
from build_engines.train_tiny.pieces import Log, Piece, run_piece
from build_engines.train_tiny.scenes import SceneTensors
from build_engines.train_tiny.vae_files import kept_statistics, resume_audio_vae, save_audio_vae
from minimax_h3.core.errors import InvalidRequestError

_SHORT, _LONG = "excerpt", "clip"
# What the network writes counts in the norm behind it, so it changes what all channels are there.
_LEVEL_WEIGHT = 1e-3
_LOOKED_AT = 32  # tones by which channels are chosen
Say = Callable[[str], None]

TONES = ExcerptKind(count=96, latents=32, bouncing=0.0, chunk=32)
KINDS = {
    _SHORT: ExcerptKind(count=1200, latents=16, bouncing=0.7, chunk=200, batch=96),
    _LONG: ExcerptKind(count=48, latents=200, bouncing=0.5, chunk=16, batch=8),
}


class ClickLearner:
    """Learner of the network of spare channels; see `pieces.Learner`."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 0,
        held_out: int = 24,
        kinds: dict[str, ExcerptKind] = KINDS,
        tones: ExcerptKind = TONES,
        say: Say = print,
    ) -> None:
        """Choose and clear channels, and compute all that stays.

        Args:
            folder: an audio autoencoder that hears no clicks.
            seed: of the sounds and of the network.
            held_out: clips in an evaluation, and to measure at the end.
            kinds: what is trained on.
            tones: by which channels and directions are chosen.
            say: gets lines of progress.

        Raises:
            CheckpointError: the autoencoder is missing.
            InvalidRequestError: no held-out clip has a click.
        """
        torch.manual_seed(seed)
        self.before = _frozen_vae(folder)
        self.statistics = kept_statistics(folder)
        mean, self._std = (torch.tensor(values)[:, None] for values in self.statistics)
        self._cleared = _frozen_vae(folder)
        self._seed, self._kinds, self.held_out = seed, kinds, held_out
        chunks = training_chunks(seed, tones)
        waves = torch.cat([sounds(each, tones.latents, clicks=False)[0] for each in chunks])
        with torch.no_grad():
            features = click_features(self.before, waves)
            hidden = trunk(self.before, features)
            latents = (latents_behind(self.before, hidden, PLACES[-1]) - mean) / self._std
        self.directions, self.unused_power = unused_directions(
            latents, last_projection(self.before, self._std)
        )
        power = _listed(self.unused_power.tolist())
        say(f"directions of the latents that tones leave free: power {power}")
        self.channels, self.moved = self._clear(features, say)
        self._sets = {name: self._excerpts(name, kind, say) for name, kind in kinds.items()}
        self._held_out = self._held_out_excerpts(held_out)
        # Not of each batch: some have no click at all.
        self._power = {name: known.code.square().mean() for name, known in self._sets.items()}
        known = self._sets[_SHORT]
        self.module = ClickNetwork(self._cleared, known.features, known.hidden, self.channels)

    def _clear(self, features: Tensor, say: Say) -> tuple[list[list[int]], list[list[float]]]:
        channels, moved = [], []
        for place in PLACES:
            with torch.no_grad():
                hidden = trunk(self._cleared, features, place)
            chosen, amounts = spare_channels(self._cleared, hidden[:_LOOKED_AT], place, self._std)
            clear_channels(self._cleared, hidden, place, chosen)
            say(f"module {place}: channels {chosen} cleared; each moved latents {_listed(amounts)}")
            channels.append(chosen)
            moved.append(amounts)
        return channels, moved

    def _excerpts(self, name: str, kind: ExcerptKind, say: Say) -> Excerpts:
        parts, began = [], time.monotonic()
        for scenes in training_chunks(self._seed, kind):
            parts.append(self._computed(scenes, kind.latents))
            done = len(parts) * kind.chunk
            say(f"{name}s: {done} of {kind.count}, {time.monotonic() - began:.0f} s")
        return joined(parts)

    def _held_out_excerpts(self, count: int) -> Excerpts:
        chunks = held_out_chunks(count)
        held_out = joined([self._computed(chunk, HELD_OUT_LATENTS) for chunk in chunks])
        if not held_out.code.any():
            raise InvalidRequestError(f"held-out: {count} clips have no click; legal: more of them")
        return held_out

    @torch.no_grad()
    def _computed(self, scenes: SceneTensors, latents: int) -> Excerpts:
        wave, onsets = sounds(scenes, latents)
        features = click_features(self._cleared, wave)
        return Excerpts(features, trunk(self._cleared, features), click_code(onsets))

    def kind_of(self, step: int) -> str:
        """Whole clips every fifth step."""
        return _LONG if step % 5 == 4 else _SHORT

    def draw(self, kind: str, step: int) -> Excerpts:
        """Some of the computed ones."""
        generator = torch.Generator().manual_seed(1_000_003 * self._seed + step)
        count, batch = len(self._sets[kind].code), self._kinds[kind].batch
        return self._sets[kind].some(torch.randint(count, (batch,), generator=generator))

    def losses(self, kind: str, batch: Excerpts) -> dict[str, Tensor]:
        """The share of the code that is missing, and a little for what the network writes."""
        said, carried = self.module(batch.features, batch.hidden)
        missing = (said - batch.code).square().mean() / self._power[kind]
        level = carried.square().mean()
        return {"total": missing + _LEVEL_WEIGHT * level, "missing": missing, "level": level}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """The share of the held-out code that the network says, and what it says elsewhere."""
        wanted = self._held_out.code
        said = self.module(self._held_out.features, self._held_out.hidden)[0]
        explained = _explained(said, wanted)
        elsewhere = _rms(said, 1 - is_near(wanted))
        return {"score": explained, "explained": explained, "elsewhere": elsewhere}

    def save(self, folder: Path) -> None:
        """Write the autoencoder with the network in its channels and with the old statistics."""
        written = new_audio_vae(0).requires_grad_(False)
        written.load_state_dict(self._cleared.state_dict())
        write_network(written, self.module, self.directions, self._std)
        save_audio_vae(written, *self.statistics, folder)


def run_click_piece(learner: ClickLearner, piece: Piece, folder: Path, *, say: Say = print) -> Log:
    """Train the network, write the autoencoder, and measure what was written.

    Args:
        learner: of the network.
        piece: settings of the training.
        folder: gets weights, configuration, curves and `training.json`.
        say: gets lines of the log.

    Raises:
        FloatingPointError: the loss is not finite.
    """
    log = run_piece(learner, piece, folder, use_graphs=False, say=say)
    figures = measure_latents(folder, learner, learner.held_out)
    facts = {
        "steps": int(log.steps[-1]["step"]) + 1,
        "seconds": log.steps[-1]["seconds"],
        "seed": piece.seed,
        "channels": dict(zip(map(str, PLACES), learner.channels, strict=True)),
        "channels_moved_latents": dict(zip(map(str, PLACES), learner.moved, strict=True)),
        "power_of_directions": learner.unused_power.tolist(),
        "held_out": figures,
    }
    (folder / "training.json").write_text(json.dumps(facts, indent=1) + "\n")
    say("written: " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    return log


@torch.no_grad()
def measure_latents(folder: Path, learner: ClickLearner, count: int) -> dict[str, float]:
    """What an autoencoder's latents say of held-out clips, against the old ones of tones alone.

    Args:
        folder: the autoencoder, as it was written.
        learner: knows the old one and the directions.
        count: held-out clips, 5.2 s each.

    Returns:
        `explained`, the share of the code that the latents' change says; in deviations of the
        latents, root mean squares over all 32 of them: `drift_elsewhere` farther than two latents
        from a click, `drift_at_clicks` nearer, beside the code, and `code_at_clicks` itself.
    """
    after = _frozen_vae(folder)
    std = torch.tensor(learner.statistics[1])[:, None]
    changes, codes = [], []
    for scenes in held_out_chunks(count):
        wave, onsets = sounds(scenes, HELD_OUT_LATENTS)
        tones, _ = sounds(scenes, HELD_OUT_LATENTS, clicks=False)
        new, old = after.encode(wave), learner.before.encode(tones)
        changes.append((new.latent_dist.mode() - old.latent_dist.mode()) / std)
        codes.append(click_code(onsets))
    change, code = torch.cat(changes), torch.cat(codes)
    said = torch.einsum("kc,bcl->bkl", learner.directions, change)
    wanted = torch.einsum("kc,bkl->bcl", learner.directions, code)
    near = is_near(code)
    return {
        "explained": _explained(said, code),
        "drift_elsewhere": _rms(change - wanted, 1 - near),
        "drift_at_clicks": _rms(change - wanted, near),
        "code_at_clicks": _rms(wanted, near),
    }


def _frozen_vae(folder: Path) -> Any:
    module = new_audio_vae(0)
    resume_audio_vae(module, folder)
    return module.requires_grad_(False)


def _explained(said: Tensor, wanted: Tensor) -> float:
    return 1 - ((said - wanted).square().sum() / wanted.square().sum()).item()


def _rms(values: Tensor, where: Tensor) -> float:
    """Root mean square over channels and those latents, 0 if there are none."""
    power = values.square().mean(1, keepdim=True)
    return ((power * where).sum() / where.sum().clamp_min(1)).sqrt().item()


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.2g}" for value in values)
