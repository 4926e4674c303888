"""A clip with its progress: events, and the finished file last."""

from minimax_h3.stages.stream import StreamStage
from minimax_h3.triton_io.decoupled import streaming_model

TritonPythonModel = streaming_model(StreamStage)
