"""Conditions of a request: keyframes and references, as every stage needs to know them.

`preprocess` looks at the encoded files and writes these facts into the plan; the encoders prepare
and encode the files by them; the DiT packs rows by them. Nothing here holds pixels or samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from minimax_h3.core.constants import AUDIO_CHANNELS, VAE_SPATIAL_STRIDE
from minimax_h3.core.lengths import latents_from_frames, rows_per_frame

KEYFRAME, IMAGE, VIDEO, AUDIO, DRIVING_AUDIO = (
    "keyframe",
    "image",
    "video",
    "audio",
    "driving_audio",
)
KINDS = (KEYFRAME, IMAGE, VIDEO, AUDIO, DRIVING_AUDIO)
FIRST_FRAME, LAST_FRAME = 0, -1


@dataclass(frozen=True, slots=True)
class Condition:
    """One keyframe or reference after preparation.

    Attributes:
        kind: one of `KINDS`. A driving audio is the locked source sound; it takes the place of the
            target audio rows and is neither labelled in the presentation nor packed as a condition.
        source: index into KEYFRAMES for a keyframe, into REFERENCES for everything else.
        digest: SHA-256 of the encoded bytes, hexadecimal; the encoder refuses other bytes.
        width, height: prepared pixels, multiples of 32; 0 for sound alone.
        num_frames: prepared pixel frames that the VAE encodes: 1 for a picture, 17 n + 5 for a
            video, 0 for sound alone.
        presented_frames: prepared 24 fps frames of a video before it was cut down to 17 n + 5; the
            text encoder samples these. 1 for a picture, 0 for sound.
        audio_latents: 40 Hz latents per channel; 0 without sound.
        frame_index: 0 or -1 for a keyframe, else 0.
        start_s: seconds skipped at the start of a reference video and its soundtrack.
    """

    kind: str
    source: int
    digest: str
    width: int = 0
    height: int = 0
    num_frames: int = 0
    presented_frames: int = 0
    audio_latents: int = 0
    frame_index: int = FIRST_FRAME
    start_s: float = 0.0

    @property
    def latent_frames(self) -> int:
        """Latent frames: 1 for a picture (the spatial encoder alone), 5 n + 2 for a video."""
        if self.num_frames <= 1:
            return self.num_frames
        return latents_from_frames(self.num_frames)

    @property
    def latent_height(self) -> int:
        """Latent cells, vertical."""
        return self.height // VAE_SPATIAL_STRIDE

    @property
    def latent_width(self) -> int:
        """Latent cells, horizontal."""
        return self.width // VAE_SPATIAL_STRIDE

    @property
    def video_rows(self) -> int:
        """Packed rows of the picture part."""
        return self.latent_frames * rows_per_frame(self.width, self.height)

    @property
    def audio_rows(self) -> int:
        """Packed condition rows of the sound part; a driving audio has none of its own."""
        return 0 if self.kind == DRIVING_AUDIO else AUDIO_CHANNELS * self.audio_latents


def condition_rows(conditions: Sequence[Condition]) -> int:
    """Packed rows that the conditions add to the sequence, picture and sound."""
    return sum(condition.video_rows + condition.audio_rows for condition in conditions)
