"""What each attention backend can run, without PyTorch: `h3 serve` asks before it starts models."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class AttentionCapabilities:
    """What a backend can run.

    Attributes:
        multi_document: keeps several documents of one sequence apart.
        dtypes: of q, k and v, by PyTorch's names.
        devices: torch device types.
        max_head_dim: widest head; every multiple of `head_dim_multiple` up to it works.
        head_dim_multiple: head widths must divide by it.
        lossless: computes with the inputs as they are. `auto` takes nothing else.
        compute_capability: of the GPUs whose kernels it has; None is any.
        library: stem of the compiled library that it needs; empty is none.
        package: that it imports beside PyTorch; empty is none.
    """

    multi_document: bool
    dtypes: frozenset[str]
    devices: frozenset[str]
    max_head_dim: int
    head_dim_multiple: int = 1
    lossless: bool = True
    compute_capability: tuple[int, int] | None = None
    library: str = ""
    package: str = ""


@dataclass(frozen=True, slots=True)
class Processor:
    """Where attention is to run.

    Attributes:
        type: torch device type.
        name: product name of a GPU.
        compute_capability: of a GPU.
    """

    type: str
    name: str = ""
    compute_capability: tuple[int, int] | None = None


_CUDNN = AttentionCapabilities(
    multi_document=True,
    dtypes=frozenset({"bfloat16"}),
    devices=frozenset({"cuda"}),
    max_head_dim=128,
    head_dim_multiple=8,
)
_HOPPER = replace(_CUDNN, head_dim_multiple=128, compute_capability=(9, 0))
_FA3, _TRTLLM = replace(_HOPPER, library="h3_fa3"), replace(_HOPPER, library="h3_trtllm")
# FP16 is not offered: activations reach the hundreds and unscaled q k overflows it.
# Source: model sheet 1.8.
_SDPA = AttentionCapabilities(
    multi_document=True,
    dtypes=frozenset({"float32", "float64", "bfloat16"}),
    devices=frozenset({"cpu", "cuda"}),
    max_head_dim=256,
)
CAPABILITIES: Mapping[str, AttentionCapabilities] = MappingProxyType(
    {
        "fa3": _FA3,
        "cudnn": _CUDNN,
        "trtllm": _TRTLLM,
        "sdpa": _SDPA,
        "fa3_e4m3": replace(_FA3, lossless=False, package="triton"),
        "trtllm_e4m3": replace(_TRTLLM, lossless=False, package="triton"),
    }
)


def refusal(
    can: AttentionCapabilities,
    processor: Processor,
    dtype: str,
    head_dim: int,
    documents: int = 1,
) -> str | None:
    """Why a backend cannot run something, or None.

    Args:
        can: what it says of itself.
        processor: where q, k and v live.
        dtype: of q, k and v, by PyTorch's name.
        head_dim: D.
        documents: most documents in one packed sequence, padding included.
    """
    if processor.type not in can.devices:
        return f"device {processor.type} is not one of {', '.join(sorted(can.devices))}"
    wanted = can.compute_capability
    if wanted and processor.compute_capability != wanted:
        return f"{processor.name} does not have compute capability {wanted[0]}.{wanted[1]}"
    if dtype not in can.dtypes:
        return f"dtype {dtype} is not one of {', '.join(sorted(can.dtypes))}"
    if head_dim > can.max_head_dim or head_dim % can.head_dim_multiple:
        return (
            f"head_dim {head_dim} is not a multiple of {can.head_dim_multiple} "
            f"up to {can.max_head_dim}"
        )
    if documents > 1 and not can.multi_document:
        return f"it takes one document, not {documents}"
    return None
