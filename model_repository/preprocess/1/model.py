"""Request fields to a validated plan and token ids."""

from minimax_h3.stages.preprocess import PreprocessStage
from minimax_h3.triton_io.adapter import stage_model

TritonPythonModel = stage_model(PreprocessStage)
