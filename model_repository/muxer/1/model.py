"""Picture and sound to MP4 files."""

from minimax_h3.stages.muxer import MuxerStage
from minimax_h3.triton_io.adapter import stage_model

TritonPythonModel = stage_model(MuxerStage)
