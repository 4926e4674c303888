"""Video latents to an H.264 stream."""

from minimax_h3.stages.video_decoder import VideoDecoderStage
from minimax_h3.triton_io.adapter import stage_model

TritonPythonModel = stage_model(VideoDecoderStage)
