"""Token ids to prompt embeddings."""

from minimax_h3.stages.text_encoder import TextEncoderStage
from minimax_h3.triton_io.adapter import stage_model

TritonPythonModel = stage_model(TextEncoderStage)
