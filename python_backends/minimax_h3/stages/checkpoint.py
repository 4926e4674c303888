"""The checkpoint of a stage, as its parameters name it."""

from minimax_h3.core.config import DUMMY
from minimax_h3.stages.base import StageContext
from minimax_h3.weights.manifest import CheckpointManifest, identify


def open_checkpoint(context: StageContext, partition: str | None = None) -> CheckpointManifest:
    """Identify the checkpoint.

    Args:
        context: of the stage.
        partition: a task type that is one partition; the server's own where it does not matter.

    Raises:
        CheckpointError: a file is missing or contradicts another.
    """
    config = context.config
    return identify(
        context.checkpoint_path, partition or config.task_type, drawn=config.weights == DUMMY
    )
