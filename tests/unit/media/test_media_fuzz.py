"""Mutated files: refused by name or read, never a crash, another error or an hour of work."""

import logging
import random
import resource
import struct
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from source_samples import Clip, encoded, oriented, picture, sound_file, tones, video, wav

from minimax_h3.core.conditions import KEYFRAME
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.media.facts import inspect
from minimax_h3.media.prepare import (
    load_condition,
    plan_keyframe,
    plan_reference,
    sample_presented,
)

LOG = logging.getLogger(__name__)
SOAK_FILES = 2_400  # of a full soak; `make test` runs a slice
FULL_SOAK_SECONDS = 1_800
SLOWEST_S = 30.0
MEMORY_GROWTH_MB = 400  # frames of the canvas in work, whatever a file claims


def corpus() -> list[bytes]:
    """One small file of each kind that is accepted."""
    wave = tones(2.2)
    return [
        encoded(picture(), "JPEG"),
        oriented(picture(), 6),
        encoded(picture(), "PNG"),
        encoded(picture(channels=4), "PNG"),
        encoded(picture(), "WEBP"),
        encoded(picture(channels=4), "WEBP", lossless=True),
        video(Clip(frames=50, width=64, height=48, sound=wave)),
        video(
            Clip(frames=50, width=64, height=48, form="mov", sound=wave, sound_codec="pcm_s16le")
        ),
        video(Clip(frames=50, width=64, height=48, turn=90, fragmented=True)),
        video(Clip(frames=50, width=64, height=48, codec="libx265")),
        wav(2.2),
        sound_file(wave, "wav", "pcm_f32le"),
        sound_file(wave, "mp3", "libmp3lame"),
        sound_file(wave, "adts", "aac"),
        sound_file(wave, "ipod", "aac"),
    ]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to four of: flipped bytes, a hostile number, a cut, a copied, dropped or foreign part."""
    mutant = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        # headers are where a mutation has a meaning
        reach = len(mutant) if rng.random() < 0.4 else min(len(mutant), 1_500)
        tail = rng.random() < 0.25
        at = max(
            0, len(mutant) - 1 - rng.randrange(max(reach, 1)) if tail else rng.randrange(reach)
        )
        kind = rng.randrange(6)
        if kind == 0:
            for index in range(at, min(len(mutant), at + rng.randint(1, 8))):
                mutant[index] = rng.randrange(256)
        elif kind == 1:
            number = rng.choice([0, 1, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x10000000])
            mutant[at : at + 4] = struct.pack(rng.choice(["<I", ">I"]), number)
        elif kind == 2:
            del mutant[at:]
        elif kind == 3:
            mutant[at:at] = mutant[at : at + rng.randint(1, 300)]
        elif kind == 4:
            del mutant[at : at + rng.randint(1, 300)]
        else:
            mutant[at : at + 4] = rng.choice([b"stsz", b"stts", b"ctts", b"elst", b"fmt ", b"IDAT"])
        if not mutant:
            break
    return bytes(mutant)


def exercise(data: bytes) -> str:
    """Everything that preprocess and the condition encoder do with a file: the refusal or empty."""
    try:
        facts = inspect(data, "references[0]")
        # a small target keeps the accepted mutants cheap; big canvases are others' tests
        plan = SimpleNamespace(num_frames=22)
        if facts.kind == "image":
            condition = plan_keyframe(facts, 1, 64, 64, 0)
            assert condition.kind == KEYFRAME
        else:
            condition = plan_reference(facts, 0, plan.num_frames)
        if condition.presented_frames:
            sample_presented(condition, data)
        media = load_condition(condition, data, plan)
        count = sum(1 for _ in media.frames)
        assert count == condition.num_frames
        if condition.audio_latents:
            assert media.waveform is not None
            assert np.isfinite(media.waveform).all()
            assert -(-media.waveform.shape[1] // 800) == condition.audio_latents
    except InvalidRequestError as error:
        return str(error)
    return ""


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_mutated_files_are_read_or_refused_by_name(soak_seconds: int, tmp_path: Path) -> None:
    count = max(150, SOAK_FILES * min(soak_seconds, FULL_SOAK_SECONDS) // FULL_SOAK_SECONDS)
    rng = random.Random(20_260)
    files = corpus()
    for data in files:
        assert exercise(data) == ""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = {"read": 0, "refused": 0}
    for index in range(count):
        mutant = mutate(files[index % len(files)], rng)
        (tmp_path / "mutant").write_bytes(mutant)  # what a crash leaves behind
        began = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of damaged tags
            refusal = exercise(mutant)
        assert not refusal or refusal.startswith(("references[0]: ", "keyframes[1]: ")), refusal
        outcomes["refused" if refusal else "read"] += 1
        assert time.monotonic() - began < SLOWEST_S
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < MEMORY_GROWTH_MB, f"{grown:.0f} MB"
    assert min(outcomes.values()) > count // 20, outcomes
    LOG.info("%d mutated files: %s, %.0f MB more memory", count, outcomes, grown)
