"""Training of the small audio autoencoder on one-second excerpts and on whole clips."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from build_engines.evaluation.quality import snr
from build_engines.evaluation.tones import find_clicks, find_tones, semitones
from build_engines.train_tiny import vocabulary as words
from build_engines.train_tiny.alias_free import use_fast_activations
from build_engines.train_tiny.batches import held_out_scenes, training_batch
from build_engines.train_tiny.click_error import ClickError
from build_engines.train_tiny.scenes import Scene, SceneTensors, to_tensors
from build_engines.train_tiny.sound import render_sound
from build_engines.train_tiny.vae_files import kept_statistics, save_audio_vae
from minimax_h3.core.constants import AUDIO_HOP_SAMPLES, AUDIO_SAMPLE_RATE_HZ
from minimax_h3.core.lengths import audio_latents_from_frames

_SHORT, _LONG = "excerpt", "clip"
_LATENTS = (40, 160)  # of an excerpt and of a clip: one and four seconds
_CANVAS = words.CANVASES[0]
_QUIET = 1e-4  # power below which an error no longer counts relative to the sound
# Share of the scenes of a step whose excerpt has a bounce; one in ten has by chance.
_BOUNCING = 0.5
_SPECTRUM_WINDOWS = (256, 1024, 4096)
_KL_WEIGHT, _SPECTRUM_WEIGHT = 1e-4, 0.2
# A click whose phase is not right yet costs more of the wave's error than none at all.
_CLICK_WEIGHT = 3.0
_STATISTICS_BATCHES = 4
QUARTER_SEMITONE = 0.25
CLICK_TOLERANCE_S = 0.002
_SHARE_DB = 10.0  # what all clicks, or all pitches, are worth beside the SNR


class AudioLearner:
    """Learner of the audio autoencoder; see `pieces.Learner`."""

    def __init__(
        self,
        module: Any,
        device: torch.device,
        *,
        seed: int = 0,
        batch: int = 24,
        held_out: int = 24,
        held_out_frames: int = 124,
        latents: tuple[int, int] = _LATENTS,
    ) -> None:
        """Take a module.

        Args:
            module: the autoencoder, fp32; it is moved to the device.
            device: where to train, in fp32.
            seed: of the data.
            batch: scenes of a step of excerpts; a step of clips takes a quarter.
            held_out: clips in an evaluation.
            held_out_frames: length of these clips.
            latents: length of an excerpt and of a clip in training.
        """
        self.module = module.to(device)
        if device.type == "cuda":  # on a CPU the library's depthwise filters are the faster ones
            use_fast_activations(self.module)
        self._device = device
        self._samples = {
            kind: count * AUDIO_HOP_SAMPLES
            for kind, count in zip((_SHORT, _LONG), latents, strict=True)
        }
        self._held_out_frames = held_out_frames
        self._kept: tuple[list[float], list[float]] | None = None
        self._click_error = ClickError().to(device)
        self._seed, self._batch, self._held_out = seed, batch, held_out
        self._windows = {size: torch.hann_window(size).to(device) for size in _SPECTRUM_WINDOWS}

    def keep_latents(self, folder: Path) -> None:
        """Train the decoder alone: what was trained on the latents stays right.

        Args:
            folder: the piece that is gone on from; its statistics stay.
        """
        for part in ("encoder", "pre_block", "mean_proj", "logs_proj"):
            getattr(self.module, part).requires_grad_(False)
        self._kept = kept_statistics(folder)

    def kind_of(self, step: int) -> str:
        """A whole clip every fifth step."""
        return _LONG if step % 5 == 4 else _SHORT

    def draw(self, kind: str, step: int) -> SceneTensors:
        """Scenes from a random moment on."""
        count = self._batch if kind == _SHORT else max(1, self._batch // 4)
        seconds = self._samples[kind] / AUDIO_SAMPLE_RATE_HZ
        bouncing = round(_BOUNCING * count)
        return training_batch(self._seed, step, count, _CANVAS, seconds, with_bounce=bouncing)

    def losses(self, kind: str, scenes: SceneTensors) -> dict[str, Tensor]:
        """Relative errors of the wave, of its clicks and of its spectra, and a small KL."""
        with torch.no_grad():
            wave = self._excerpts(kind, scenes)
        posterior = self.module.encode(wave).latent_dist
        log_std = posterior.logs.clamp(-15, 5)
        latents = posterior.mean + torch.exp(log_std) * torch.randn_like(posterior.mean)
        decoded = self.module.decode(latents).sample
        error = _relative_error(decoded, wave)
        clicks = self._click_error(decoded, wave).mean()
        spectra = self._spectral_error(decoded, wave)
        kl = (0.5 * (posterior.mean.square() + (2 * log_std).exp() - 1) - log_std).mean()
        total = error + _CLICK_WEIGHT * clicks + _SPECTRUM_WEIGHT * spectra + _KL_WEIGHT * kl
        return {"total": total, "wave": error, "clicks": clicks, "spectra": spectra, "kl": kl}

    def _excerpts(self, kind: str, scenes: SceneTensors) -> Tensor:
        """One channel of each scene: the other one is often the same at another level."""
        stereo = render_sound(scenes, *_CANVAS, self._samples[kind])
        return torch.cat((stereo[0::2, 0], stereo[1::2, 1]))[:, None]

    def _spectral_error(self, decoded: Tensor, wave: Tensor) -> Tensor:
        """Mean over window lengths of the relative distance of magnitudes."""
        errors = []
        for size, window in self._windows.items():
            ours, theirs = (
                torch.stft(x[:, 0], size, size // 4, window=window, return_complex=True).abs()
                for x in (decoded, wave)
            )
            distance = (ours - theirs).square().sum((1, 2)).add(1e-6).sqrt()
            errors.append((distance / theirs.square().sum((1, 2)).add(1.0).sqrt()).mean())
        return torch.stack(errors).mean()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Figures of whole held-out sounds, in fp32; see `compare_sounds`."""
        scenes = held_out_scenes(self._held_out, _CANVAS, self._held_out_frames)
        samples = audio_latents_from_frames(self._held_out_frames) * AUDIO_HOP_SAMPLES
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            pairs = [self._round_trip(scene, samples) for scene in scenes]
        return compare_sounds(pairs, self._held_out_frames)

    def _round_trip(self, scene: Scene, samples: int) -> tuple[Any, Any]:
        wave = render_sound(to_tensors([scene]).to(self._device), *_CANVAS, samples)[0]
        latents = self.module.encode(wave[:, None]).latent_dist.mode()
        decoded = self.module.decode(latents).sample[:, 0]
        return decoded.cpu().numpy(), wave.cpu().numpy()

    def save(self, folder: Path) -> None:
        """Measure the statistics of latents, unless they are kept, and write everything."""
        mean, std = self._kept or self._statistics()
        save_audio_vae(self.module, mean, std, folder)

    @torch.no_grad()
    def _statistics(self) -> tuple[list[float], list[float]]:
        """Mean and deviation of each latent channel over training excerpts."""
        latents = []
        for step in range(_STATISTICS_BATCHES):
            scenes = self.draw(_SHORT, 10_000_000 + step).to(self._device)
            wave = render_sound(scenes, *_CANVAS, self._samples[_SHORT]).flatten(0, 1)
            encoded = self.module.encode(wave[:, None]).latent_dist.mode()
            latents.append(encoded.transpose(0, 1).flatten(1))
        std, mean = torch.std_mean(torch.cat(latents, dim=1), dim=1)
        return mean.tolist(), std.clamp_min(1e-3).tolist()


def compare_sounds(pairs: list[tuple[Any, Any]], num_frames: int) -> dict[str, float]:
    """How close decoded sounds are to what was encoded.

    Args:
        pairs: decoded wave and original of each sound, fp32 [2, samples].
        num_frames: frames of the picture beside it.

    Returns:
        `snr`, median in dB; `pitch_share`, tones within a quarter semitone; `click_share`, clicks
        within 2 ms; `false_clicks`, clicks a sound that are not in the original; `score`, the SNR
        plus ten for each share, less ten for a false click.
    """
    pitches, clicks, false_clicks = [], [], 0
    for decoded, wave in pairs:
        found = [tone.pitch_hz for tone in find_tones(decoded, num_frames)]
        for tone in find_tones(wave, num_frames):
            distances = [abs(semitones(pitch, tone.pitch_hz)) for pitch in found]
            pitches.append(min(distances, default=99.0) <= QUARTER_SEMITONE)
        heard, true = find_clicks(decoded), find_clicks(wave)
        clicks += [_is_near(time, heard) for time in true]
        false_clicks += sum(not _is_near(time, true) for time in heard)
    figures = {
        "snr": float(np.median([snr(decoded, wave) for decoded, wave in pairs])),
        "pitch_share": float(np.mean(pitches)),
        "click_share": float(np.mean(clicks)) if clicks else 1.0,
        "false_clicks": false_clicks / len(pairs),
    }
    right = figures["pitch_share"] + figures["click_share"] - figures["false_clicks"]
    return {**figures, "score": figures["snr"] + _SHARE_DB * right}


def _is_near(time_s: float, times: list[float]) -> bool:
    return any(abs(time_s - other) <= CLICK_TOLERANCE_S for other in times)


def _relative_error(decoded: Tensor, wave: Tensor) -> Tensor:
    """Root of noise over signal power of each sound, averaged: 0.1 is 20 dB."""
    noise = (decoded - wave).square().mean((1, 2))
    signal = wave.square().mean((1, 2))
    return (noise / (signal + _QUIET) + 1e-8).sqrt().mean()
