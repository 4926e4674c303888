"""Backends that were asked for by name and cannot run here, refused before models are loaded.

The models choose and check once more when they load; only they can try a library.
"""

import importlib

from minimax_h3.attention.capabilities import CAPABILITIES, Processor, refusal
from minimax_h3.attention.libraries import library_file
from minimax_h3.core.config import StageConfig
from minimax_h3.core.errors import BackendUnavailableError
from minimax_h3.ops.requirements import what_fused_lacks
from minimax_h3.weights.manifest import CheckpointManifest

AUTO = "auto"
_PLAIN_ROW_OPS = (AUTO, "reference")
_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def check_choices(config: StageConfig, manifest: CheckpointManifest, processor: Processor) -> None:
    """Refuse an attention backend or row operations that cannot run.

    Args:
        config: parameters of the models.
        manifest: of the checkpoint; its heads must fit.
        processor: what the models will compute on.

    Raises:
        BackendUnavailableError: names the option, the reason and what can run.
    """
    if config.attention != AUTO:
        head_dim = manifest.dit_config.head_dim
        reasons = {name: _why_not(name, config, head_dim, processor) for name in CAPABILITIES}
        if why := reasons[config.attention]:
            legal = ", ".join((AUTO, *(name for name, lack in reasons.items() if not lack)))
            raise BackendUnavailableError(
                f"attention: {config.attention} cannot run here: {why}; legal: {legal}"
            )
    if config.row_ops not in _PLAIN_ROW_OPS and (lack := what_fused_lacks(processor.type)):
        raise BackendUnavailableError(
            f"row-ops: {config.row_ops} cannot run here: {lack}; legal: {', '.join(_PLAIN_ROW_OPS)}"
        )


def _why_not(name: str, config: StageConfig, head_dim: int, processor: Processor) -> str | None:
    can = CAPABILITIES[name]
    default = "bf16" if processor.type == "cuda" else "fp32"
    dtype = _DTYPES[default if config.dtype == AUTO else config.dtype]
    if why := refusal(can, processor, dtype, head_dim):
        return why
    try:
        if can.library:
            library_file(can.library)
        if can.package:
            importlib.import_module(can.package)
    except BackendUnavailableError as error:
        return str(error)
    except ImportError as error:
        return f"cannot be imported ({error})"
    return None
