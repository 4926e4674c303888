"""What the fused row operations need, without PyTorch: `h3 serve` asks before it starts models."""

import importlib


def what_fused_lacks(device_type: str) -> str | None:
    """Why the fused operations cannot run on a torch device type, or None."""
    if device_type != "cuda":
        return f"device {device_type} is not cuda"
    try:
        importlib.import_module("triton")
    except ImportError as error:
        return f"the package triton cannot be imported ({error})"
    return None
