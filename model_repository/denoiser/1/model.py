"""The denoising loop of a job: one call to the DiT a step."""

from minimax_h3.stages.denoiser import DenoiserStage
from minimax_h3.triton_io.adapter import stage_model

TritonPythonModel = stage_model(DenoiserStage)
