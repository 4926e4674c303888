"""Procedural clips as arrays and as files, as the product would write them."""

from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from build_engines.train_tiny.captions import caption
from build_engines.train_tiny.picture import render_frames
from build_engines.train_tiny.scenes import Scene, draw_scene, to_tensors
from build_engines.train_tiny.sound import render_sound
from minimax_h3.core.lengths import audio_latents_from_frames, audio_samples_from_latents
from minimax_h3.media.h264 import VideoStreamEncoder
from minimax_h3.media.mp4 import mux

Clip: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.float32]]


def render_clip(scene: Scene) -> Clip:
    """Frames, uint8 RGB [F, H, W, 3], and waveform, fp32 [2, samples], of a whole scene."""
    tensors = to_tensors([scene])
    frames = render_frames(tensors, scene.width, scene.height, scene.num_frames)[0]
    samples = audio_samples_from_latents(audio_latents_from_frames(scene.num_frames))
    wave = render_sound(tensors, scene.width, scene.height, samples)[0]
    levels = (frames.permute(1, 2, 3, 0) * 255).round().byte().numpy()
    return np.ascontiguousarray(levels), wave.numpy()


def encode_clip(clip: Clip) -> bytes:
    """The clip as an MP4 by the product's own writers at their default quality."""
    frames, wave = clip
    encoder = VideoStreamEncoder(frames.shape[2], frames.shape[1])
    encoder.push(frames)
    return mux(encoder.finish(), wave)


def write_sample(path: Path, seed: int, index: int) -> str:
    """Write one scene; returns its full caption."""
    scene = draw_scene(seed, index)
    path.write_bytes(encode_clip(render_clip(scene)))
    return caption(scene, plain=True)
