"""Keyframes and references to condition rows."""

from minimax_h3.stages.condition_encoder import ConditionEncoderStage
from minimax_h3.triton_io.adapter import stage_model

TritonPythonModel = stage_model(ConditionEncoderStage)
