"""Strict, streamed loading: safetensors shards -> a module whose parameters start on `meta`.

Names and shapes are compared before the first payload byte is read. Then one group of tensors at a
time is read to its device, rearranged and cast there. So the host holds what stays on it and one
group; of what goes to a GPU it holds two slots, see `weights.payload`.

Files that are marked as drawn are compared in the same way, but their payload is never read: values
are drawn on the device.
"""

import logging
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minimax_h3.core.errors import CheckpointError
from minimax_h3.weights.key_maps import KeyGroup, KeyMap
from minimax_h3.weights.payload import TORCH_DTYPES, PayloadReader, read_tensor
from minimax_h3.weights.random_scales import Scale
from minimax_h3.weights.safetensors_files import ComponentFiles

_LOG = logging.getLogger(__name__)
_NAMED_PROBLEMS = 20
_FILLERS = frozenset(
    {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.empty_like}
)

_HOST = torch.device("cpu")

Module = TypeVar("Module", bound=nn.Module)
DtypeRule = Callable[[str], torch.dtype]


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was loaded: counts, bytes in memory, seconds."""

    tensors: int
    parameters: int
    loaded_bytes: int
    seconds: float


class _FillersOnMeta(TorchFunctionMode):
    """Constructors that only reserve room give meta tensors; computed buffers stay real."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _FILLERS:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def build_on_meta(factory: Callable[[], Module]) -> Module:
    """Build a module without memory for its parameters.

    Buffers that are computed (rotary frequencies, filters) get their values; those made by
    `torch.zeros` and the like are on meta and must come from the checkpoint.
    """
    with _FillersOnMeta():
        return factory()


def load_weights(
    module: nn.Module,
    files: ComponentFiles,
    key_map: KeyMap,
    *,
    device: torch.device,
    dtype_of: DtypeRule,
    on_host: Callable[[str], bool] | None = None,
    unused: Mapping[str, Tensor] | None = None,
    optional: frozenset[str] = frozenset(),
) -> LoadReport:
    """Fill `module` from `files` and put it in evaluation mode.

    Args:
        module: from `build_on_meta`.
        files: headers of the component's weight files.
        key_map: checkpoint names -> names of `module`.
        device: where parameters and buffers go.
        dtype_of: dtype of a tensor, by its name in `module`.
        on_host: which tensors stay on the CPU all the same, by their names in `module`.
        unused: tensors, by our names, that belong into the checkpoint but not into `module`. Only
            their names and shapes are compared, so they may be on meta.
        optional: names in `unused` that may be absent.

    Raises:
        CheckpointError: names every missing, extra and misshaped tensor (the first 20 of each
            kind), or the tensor whose payload is not what it must be.
    """
    began = time.perf_counter()
    targets = dict(module.state_dict())
    groups = checked_groups(files, key_map, targets, unused, optional)
    home_of = {name: _HOST if on_host is not None and on_host(name) else device for name in targets}
    if files.drawn is not None:
        placed = _draw(module, targets, home_of, dtype_of, files.drawn)
    else:
        placed = _read(module, files, groups, home_of, dtype_of)
    _settle_buffers(module, targets, device)
    parameters = sum(tensor.numel() for tensor in targets.values())
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return LoadReport(len(targets), parameters, placed, time.perf_counter() - began)


def _read(
    module: nn.Module,
    files: ComponentFiles,
    groups: list[KeyGroup],
    home_of: Mapping[str, torch.device],
    dtype_of: DtypeRule,
) -> int:
    """Read one file after another; returns the bytes in place."""
    placed, homes = 0, files.file_of()
    device = next((home for home in home_of.values() if home.type != "cpu"), _HOST)
    headers = files.tensors
    total = sum(headers[name].num_bytes for group in groups for name in group.checkpoint)
    done, began = 0, time.perf_counter()
    with PayloadReader(device) as reader:
        for number, file in enumerate(files.files, start=1):
            for group in [group for group in groups if homes[group.checkpoint[0]] is file]:
                home = home_of[group.ours[0]]
                sources = [reader.read(homes[name], name, home) for name in group.checkpoint]
                done += sum(source.nbytes for source in sources)
                values = group.transform.to_ours(sources)
                del sources  # or two groups would be alive while the next one is read
                for name, value in zip(group.ours, values, strict=True):
                    placed += _place(module, name, value, home, dtype_of(name))
                del values, value
            seconds = time.perf_counter() - began
            _LOG.info(
                "%s: file %d of %d, %.2f of %.2f GB, %.1f s, %.2f GB/s",
                files.folder.name,
                number,
                len(files.files),
                done / 1e9,
                total / 1e9,
                seconds,
                done / 1e9 / max(seconds, 1e-9),
            )
    return placed


def _draw(
    module: nn.Module,
    targets: Mapping[str, Tensor],
    home_of: Mapping[str, torch.device],
    dtype_of: DtypeRule,
    scale: Scale,
) -> int:
    """Draw every tensor that the module does not compute itself; returns the bytes in place.

    A tensor's values depend on its name alone, and on the kind of device.
    """
    placed = 0
    for name, tensor in targets.items():
        home, dtype = home_of[name], dtype_of(name)
        value = tensor
        if tensor.is_meta:
            generator = torch.Generator(home).manual_seed(zlib.crc32(name.encode()))
            mean, deviation = scale(name, tuple(tensor.shape))
            value = torch.empty(tensor.shape, dtype=dtype, device=home)
            value.normal_(mean, deviation, generator=generator)
        placed += _place(module, name, value, home, dtype)
    _LOG.warning("dummy weights: %d tensors, %.2f GB drawn", len(targets), placed / 1e9)
    return placed


def checked_groups(
    files: ComponentFiles,
    key_map: KeyMap,
    needed: Mapping[str, Tensor],
    unused: Mapping[str, Tensor] | None = None,
    optional: frozenset[str] = frozenset(),
) -> list[KeyGroup]:
    """Compare names, shapes and dtypes of `files` with what `key_map` needs for our tensors.

    Args:
        files: headers of the component's weight files.
        key_map: checkpoint names -> ours.
        needed: our tensors, which may be on meta.
        unused: as in `load_weights`.
        optional: as in `load_weights`.

    Returns:
        The groups that produce `needed`, in order of the files.

    Raises:
        CheckpointError: as `load_weights`, before any large payload is read.
    """
    groups = key_map.groups(needed)
    wanted = _checkpoint_shapes(groups, needed)
    left_out = _checkpoint_shapes(key_map.groups(unused or {}), unused or {})
    absent_ok = _checkpoint_shapes(key_map.groups(optional), unused or {})
    derived = {entry.name for entry in key_map.derived}
    _check_names_and_shapes(files, wanted | left_out, derived, set(absent_ok))
    _check_dtypes(files, wanted)
    homes = files.file_of()
    for entry in key_map.derived:
        if not entry.accepts(read_tensor(homes[entry.name], entry.name)):
            raise CheckpointError(
                f"{homes[entry.name].path}: {entry.name} is not what the configuration implies"
            )
    position = {name: number for number, name in enumerate(files.tensors)}
    return sorted(groups, key=lambda group: position[group.checkpoint[0]])


def _checkpoint_shapes(
    groups: list[KeyGroup], ours: Mapping[str, Tensor]
) -> dict[str, tuple[int, ...]]:
    """Shapes that the checkpoint must have for our tensors of these groups."""
    expected: dict[str, tuple[int, ...]] = {}
    for group in groups:
        values = [torch.empty(ours[name].shape, device="meta") for name in group.ours]
        theirs = group.transform.from_ours(values)
        expected |= {
            name: tuple(tensor.shape) for name, tensor in zip(group.checkpoint, theirs, strict=True)
        }
    return expected


def _check_names_and_shapes(
    files: ComponentFiles,
    expected: Mapping[str, tuple[int, ...]],
    derived: set[str],
    optional: set[str],
) -> None:
    present = files.tensors
    problems = {
        "missing": sorted((set(expected) | derived) - set(present) - optional),
        "extra": sorted(set(present) - set(expected) - derived),
        "misshaped": [
            f"{name} {list(present[name].shape)} instead of {list(shape)}"
            for name, shape in sorted(expected.items())
            if name in present and present[name].shape != shape
        ],
    }
    _raise_named(files, problems)


def _check_dtypes(files: ComponentFiles, expected: Mapping[str, tuple[int, ...]]) -> None:
    wrong = [
        f"{name} {header.dtype}"
        for name, header in sorted(files.tensors.items())
        if name in expected and header.dtype not in TORCH_DTYPES
    ]
    _raise_named(files, {f"not of {', '.join(TORCH_DTYPES)}": wrong})


def _raise_named(files: ComponentFiles, problems: Mapping[str, list[str]]) -> None:
    parts = []
    for kind, names in problems.items():
        if names:
            more = f" and {len(names) - _NAMED_PROBLEMS} more" if names[_NAMED_PROBLEMS:] else ""
            parts.append(f"{len(names)} {kind}: {', '.join(names[:_NAMED_PROBLEMS])}{more}")
    if parts:
        raise CheckpointError(f"{files.folder}: {'; '.join(parts)}")


def _place(
    module: nn.Module, name: str, value: Tensor, device: torch.device, dtype: torch.dtype
) -> int:
    """Put one tensor into the module; returns its bytes."""
    owner_name, _, leaf = name.rpartition(".")
    owner = module.get_submodule(owner_name)
    placed = value.to(device=device, dtype=dtype).contiguous()
    if placed.untyped_storage().nbytes() != placed.nbytes:
        placed = placed.clone()  # a slice would keep its whole source alive
    is_parameter = leaf in owner._parameters
    setattr(owner, leaf, nn.Parameter(placed, requires_grad=False) if is_parameter else placed)
    return placed.nbytes


def _settle_buffers(module: nn.Module, loaded: Mapping[str, Tensor], device: torch.device) -> None:
    """Move computed buffers to the device and make sure that nothing is left without values."""
    for name, buffer in list(module.named_buffers()):
        if name not in loaded and not buffer.is_meta:
            owner_name, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(owner_name), leaf, buffer.to(device))
    empty = [
        name
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
        if tensor.is_meta
    ]
    if empty:
        raise CheckpointError(f"tensors without values after loading: {', '.join(empty)}")
    module.eval().requires_grad_(False)
