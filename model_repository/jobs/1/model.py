"""Control: admission, turns, progress, cancel, ping."""

from minimax_h3.stages.jobs import JobsStage
from minimax_h3.triton_io.adapter import stage_model

TritonPythonModel = stage_model(JobsStage)
