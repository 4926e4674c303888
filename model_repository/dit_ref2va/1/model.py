"""Sessions of the Ref2VA diffusion transformer, for ref2va."""

from minimax_h3.stages.dit import Ref2vaDitStage
from minimax_h3.triton_io.adapter import stage_model

TritonPythonModel = stage_model(Ref2vaDitStage)
