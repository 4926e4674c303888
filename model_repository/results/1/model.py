"""Files of finished jobs, kept for a while."""

from minimax_h3.stages.results import ResultsStage
from minimax_h3.triton_io.adapter import stage_model

TritonPythonModel = stage_model(ResultsStage)
