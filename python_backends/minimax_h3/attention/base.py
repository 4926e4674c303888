"""What an attention backend is, which ones exist, and how one is chosen.

The choice is made once, at start, from what a backend says it can do. A backend that was asked for
by name and cannot run is an error; nothing falls back in silence, and no launch is ever retried.
"""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch

from minimax_h3.attention.capabilities import AttentionCapabilities, Processor, refusal
from minimax_h3.core.errors import BackendUnavailableError

AUTO = "auto"


class AttentionBackend(Protocol):
    """Full bidirectional attention inside each document of a packed sequence."""

    @property
    def name(self) -> str:
        """The word that selects it in the configuration."""
        ...

    @property
    def capabilities(self) -> AttentionCapabilities:
        """What it can run; what is not stated here is never tried."""
        ...

    def check(self) -> None:
        """Make ready to run.

        Raises:
            BackendUnavailableError: a library or a file is missing; it is named.
        """
        ...

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: tuple[int, ...]
    ) -> torch.Tensor:
        """Attend.

        Args:
            q: [S, H, D]; k and v the same. Rows may be strided, the last dimension is dense.
            k: see q.
            v: see q.
            cu_seqlens: document bounds 0, ..., S as host integers, strictly rising.

        Returns:
            [S, H, D], softmax(q k / sqrt(D)) v within each document, dtype of q.
        """
        ...


class Selection(NamedTuple):
    """A chosen backend and why, for the log and the metadata."""

    backend: AttentionBackend
    reason: str


# Name -> module with a `load_backend()`. A module is imported when its backend is wanted, so that a
# missing wheel or library breaks its own backend only. The order is the preference of `auto`:
# fastest first, as measured on an H200 (docs/benchmarks.md).
BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "fa3": "minimax_h3.attention.fa3",
        "cudnn": "minimax_h3.attention.cudnn",
        "trtllm": "minimax_h3.attention.trtllm",
        "sdpa": "minimax_h3.attention.sdpa",
        "fa3_e4m3": "minimax_h3.attention.fa3_e4m3",
        "trtllm_e4m3": "minimax_h3.attention.trtllm_e4m3",
    }
)


def select(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    documents: int = 1,
    *,
    backends: Mapping[str, str] = BACKENDS,
) -> Selection:
    """Choose a backend by name, or the first that can run with `auto`.

    Args:
        name: `auto`, or a key of `backends`.
        device: where q, k and v live.
        dtype: of q, k and v.
        head_dim: D.
        documents: most documents in one packed sequence, padding included.
        backends: the registry; tests bring their own.

    Raises:
        BackendUnavailableError: unknown name, or it cannot run this, or with `auto` none can; the
            message says why for each backend that was considered.
    """
    if name != AUTO and name not in backends:
        known = ", ".join((AUTO, *backends))
        raise BackendUnavailableError(f"attention: {name!r} is not known; legal: {known}")
    refusals: list[str] = []
    for candidate in backends if name == AUTO else (name,):
        try:
            backend: AttentionBackend = importlib.import_module(backends[candidate]).load_backend()
        except ImportError as error:
            refusals.append(f"{candidate}: cannot be imported ({error})")
            continue
        can = backend.capabilities
        why_not = refusal(can, _processor(device, can), _name(dtype), head_dim, documents)
        if why_not is None and name == AUTO and not can.lossless:
            why_not = "it is not lossless, so it has to be asked for by name"
        if why_not is None:
            why_not = _absence(backend)
        if why_not is None:
            return Selection(backend, _reason(name, candidate, refusals))
        refusals.append(f"{candidate}: {why_not}")
    raise BackendUnavailableError(f"attention: {name} cannot run here; " + "; ".join(refusals))


def _absence(backend: AttentionBackend) -> str | None:
    """What the backend needs and does not find on this machine."""
    try:
        backend.check()
    except BackendUnavailableError as error:
        return str(error)
    return None


def _reason(name: str, chosen: str, refusals: list[str]) -> str:
    if name != AUTO:
        return f"{chosen} was asked for by name"
    passed_over = f"; passed over {'; '.join(refusals)}" if refusals else ""
    return f"auto: {chosen} is the first that can run here{passed_over}"


def _processor(device: torch.device, can: AttentionCapabilities) -> Processor:
    """The device; a GPU is asked what it is only for a backend that cares."""
    if device.type != "cuda" or can.compute_capability is None:
        return Processor(device.type)
    return Processor(
        device.type,
        torch.cuda.get_device_name(device),
        torch.cuda.get_device_capability(device),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
