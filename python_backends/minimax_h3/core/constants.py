"""Facts of the released MiniMax-H3 model that are not in any checkpoint file.

Every value is fixed by the released model; a checkpoint that disagrees is refused by the loader.
Source of each line: docs/model-notes.md, section "Constants".
"""

from enum import IntEnum

VIDEO_FPS = 24  # frames per second; the only rate the model was trained on
AUDIO_SAMPLE_RATE_HZ = 32_000
AUDIO_CHANNELS = 2  # stereo; the audio VAE is mono and sees the channels as two batch items
AUDIO_HOP_SAMPLES = 800  # samples per audio latent: 40 latents per second
AUDIO_LATENTS_PER_SECOND = 40

VAE_SPATIAL_STRIDE = 16  # pixels per latent cell, both axes
VAE_TEMPORAL_STRIDE = 4
VAE_CLIP_FRAMES = 17  # pixel frames per encoder clip
VAE_CLIP_LATENTS = 5  # latent frames per clip
VAE_TAIL_FRAMES = 5  # pixel frames beyond the last whole clip: 17 n + 5
VAE_TAIL_LATENTS = 2

PATCH_SIZE = (1, 2, 2)  # (t, h, w) latent cells per row
CANVAS_MULTIPLE = 32  # VAE_SPATIAL_STRIDE * PATCH_SIZE[1]
VIDEO_LATENT_CHANNELS = 24
VIDEO_ROW_WIDTH = 96  # VIDEO_LATENT_CHANNELS * prod(PATCH_SIZE)
AUDIO_ROW_WIDTH = 32

VISION_PATCH_PIXELS = 16  # side of one vision patch of the text encoder
VISION_MERGE = 2  # patches per side that become one token
VISION_PAIR_FRAMES = 2  # frames per patch in time; a picture is shown twice
VISION_PATCH_WIDTH = 768  # 3 * VISION_PATCH_PIXELS ** 2: one patch of one frame
PRESENTED_FRAME_STEP = 12  # the text encoder sees every 12th frame of a 24 fps video: 2 fps
TEXT_ENCODER_LAYERS = 50  # hidden_states[50]: after 50 decoder layers, before any norm
CONDITION_TIME = 0.999  # t of visual condition rows, in the data and in the AdaLN lookup
AUDIO_CONDITION_TIME = 1.0  # reference sound stays clean
CONDITION_POSTERIOR_SEED = 42

VIDEO_FLOW_SHIFT = 12.0  # used when the checkpoint index names none
AUDIO_FLOW_SHIFT = 3.0

PIXEL_MEAN = (0.485, 0.456, 0.406)  # ImageNet statistics over [0, 1] RGB, for encode and decode
PIXEL_STD = (0.229, 0.224, 0.225)


class Modality(IntEnum):
    """Tag of a packed row; it selects the AdaLN row `3 * time_index + tag`, nothing else."""

    VIDEO = 0
    TEXT = 1
    AUDIO = 2


TASK_T2VA = "t2va"
TASK_FL2VA = "fl2va"
TASK_REF2VA = "ref2va"
TASKS = (TASK_T2VA, TASK_FL2VA, TASK_REF2VA)
