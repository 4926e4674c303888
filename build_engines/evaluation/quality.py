"""Differences of pictures and sounds in decibels."""

import numpy as np
from numpy.typing import NDArray


def psnr(frames: NDArray[np.uint8], reference: NDArray[np.uint8]) -> float:
    """Peak signal to noise ratio of 8-bit pictures, in dB; infinite for equal ones.

    Raises:
        ValueError: different shapes.
    """
    if frames.shape != reference.shape:
        raise ValueError(f"frames: shape {frames.shape} is not legal; legal: {reference.shape}")
    error = np.mean((frames.astype(np.float64) - reference.astype(np.float64)) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(255.0**2 / error))


def snr(wave: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """Signal to noise ratio of a waveform, in dB; infinite for equal ones.

    Raises:
        ValueError: different shapes, or a silent reference.
    """
    if wave.shape != reference.shape:
        raise ValueError(f"wave: shape {wave.shape} is not legal; legal: {reference.shape}")
    signal = np.mean(reference.astype(np.float64) ** 2)
    if signal == 0:
        raise ValueError("wave: the reference is silent")
    error = np.mean((wave.astype(np.float64) - reference.astype(np.float64)) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(signal / error))
