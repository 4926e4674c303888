"""Audio latents to a 32 kHz stereo waveform."""

from minimax_h3.stages.audio_decoder import AudioDecoderStage
from minimax_h3.triton_io.adapter import stage_model

TritonPythonModel = stage_model(AudioDecoderStage)
