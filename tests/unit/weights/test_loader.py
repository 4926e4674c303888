"""Strict loading: what is wrong with a checkpoint is named, what is right arrives bit for bit."""

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import (
    AutoencoderKLMiniMaxH3,
    AutoencoderKLMiniMaxH3Audio,
    MiniMaxH3Transformer3DModel,
)
from torch import nn

from minimax_h3.core.errors import CheckpointError
from minimax_h3.dit.loading import load_transformer
from minimax_h3.dit.model import FP32_MODULES
from minimax_h3.text.qwen import TruncatedQwen3VL
from minimax_h3.weights import payload
from minimax_h3.weights.dit_shapes import DIT_FP32_PREFIXES, transformer_shapes
from minimax_h3.weights.key_maps import (
    KeyMap,
    Rule,
    dit_from_diffusers,
    unchanged,
    video_vae_keys,
)
from minimax_h3.weights.loader import build_on_meta, load_weights
from minimax_h3.weights.manifest import CheckpointManifest, identify
from minimax_h3.weights.safetensors_files import read_component
from minimax_h3.weights.vae_config import audio_vae_arguments, video_vae_arguments

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")


def _fp32(name: str) -> torch.dtype:
    del name
    return torch.float32


def _load_transformer(manifest: CheckpointManifest) -> nn.Module:
    return load_transformer(manifest, CPU, torch.float32)


def _load_text(manifest: CheckpointManifest) -> nn.Module:
    return TruncatedQwen3VL.load(manifest, CPU, torch.float32)


def _load_video(manifest: CheckpointManifest) -> nn.Module:
    arguments = video_vae_arguments(manifest)
    module = build_on_meta(lambda: AutoencoderKLMiniMaxH3(**arguments))
    files, keys = manifest.weights["video_vae"], video_vae_keys(manifest)
    load_weights(module, files, keys, device=CPU, dtype_of=_fp32)
    return module


def _load_audio(manifest: CheckpointManifest) -> nn.Module:
    arguments = audio_vae_arguments(manifest)
    module = build_on_meta(lambda: AutoencoderKLMiniMaxH3Audio(**arguments))
    files = manifest.weights["audio_vae"]
    load_weights(module, files, unchanged(), device=CPU, dtype_of=_fp32)
    return module


LOADERS: dict[str, Callable[[CheckpointManifest], nn.Module]] = {
    "transformer": _load_transformer,
    "text_encoder": _load_text,
    "video_vae": _load_video,
    "audio_vae": _load_audio,
}
ONE_NAME = {
    "transformer": "token_refiner.blocks.1.attn.qkv_proj.weight",
    "text_encoder": "model.language_model.layers.7.mlp.up_proj.weight",
    "video_vae": "encoder.down.4.block.0.nin_shortcut.weight",
    "audio_vae": "decoder.ups.3.0.weight_v",
}


def _reload(editable, component: str) -> nn.Module:
    return LOADERS[component](identify(editable.root, "fl2va"))


@pytest.mark.parametrize("component", LOADERS)
def test_one_missing_tensor_is_named(editable, component: str) -> None:
    name = ONE_NAME[component]
    editable.edit(component, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f": 1 missing: {name}$"):
        _reload(editable, component)


@pytest.mark.parametrize("component", LOADERS)
def test_one_extra_tensor_is_named(editable, component: str) -> None:
    editable.edit(component, lambda tensors: tensors.update(stray=torch.zeros(1)))
    with pytest.raises(CheckpointError, match=r": 1 extra: stray$"):
        _reload(editable, component)


@pytest.mark.parametrize("component", LOADERS)
def test_one_misshaped_tensor_is_named(editable, component: str) -> None:
    name = ONE_NAME[component]

    def cut(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = tensors[name][1:].contiguous()

    shape = list(editable.read(component)[name].shape)
    editable.edit(component, cut)
    with pytest.raises(CheckpointError) as caught:
        _reload(editable, component)
    wrong = [shape[0] - 1, *shape[1:]]
    assert str(caught.value).endswith(f": 1 misshaped: {name} {wrong} instead of {shape}")


@pytest.mark.parametrize("component", LOADERS)
def test_a_truncated_file_is_named(editable, component: str) -> None:
    path = max(editable.folder(component).glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{path.name}: truncated"):
        _reload(editable, component)


def test_all_kinds_are_collected_and_counted(editable) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        for index in range(25):
            tensors[f"stray.{index:02d}"] = torch.zeros(1)
        del tensors["condition_proj.bias"], tensors["final_layer.norm.weight"]
        tensors["blocks.0.norm1.weight"] = torch.zeros(3)

    editable.edit("transformer", spoil)
    with pytest.raises(CheckpointError) as caught:
        _reload(editable, "transformer")
    text = str(caught.value)
    assert "2 missing: condition_proj.bias, final_layer.norm.weight" in text
    assert "25 extra: stray.00" in text
    assert "stray.19 and 5 more" in text
    assert "stray.20" not in text
    assert "1 misshaped: blocks.0.norm1.weight [3] instead of [48]" in text


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_tensors_are_refused(editable, dtype: torch.dtype) -> None:
    name = "blocks.0.mlp.fc2.weight"

    def quantise(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = tensors[name].float().to(dtype)

    editable.edit("transformer", quantise)
    with pytest.raises(CheckpointError, match=f"1 not of F64, F32, F16, BF16: {name}"):
        _reload(editable, "transformer")


def test_other_rotary_frequencies_are_refused(editable) -> None:
    editable.edit("transformer", lambda tensors: tensors["rope.inv_freq"][3].mul_(1.0000002))
    with pytest.raises(CheckpointError, match=r"rope\.inv_freq is not what the configuration"):
        _reload(editable, "transformer")


def test_missing_rotary_frequencies_are_named(editable) -> None:
    editable.edit("transformer", lambda tensors: tensors.pop("rope.inv_freq"))
    with pytest.raises(CheckpointError, match=r"1 missing: rope\.inv_freq"):
        _reload(editable, "transformer")


def test_a_trained_mask_token_is_refused(editable) -> None:
    editable.edit("video_vae", lambda tensors: tensors["decoder.mask_token"][0, 0, 5].add_(1))
    with pytest.raises(CheckpointError, match=r"decoder\.mask_token is not what"):
        _reload(editable, "video_vae")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fp32_island_stays_fp32(tiny_checkpoint: Path, dtype: torch.dtype) -> None:
    model = load_transformer(identify(tiny_checkpoint, "fl2va"), CPU, dtype)
    state = model.state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == transformer_shapes(
        model.config
    )
    assert tuple(f"{name}." for name in FP32_MODULES) == DIT_FP32_PREFIXES
    island = [name for name in state if name.startswith(DIT_FP32_PREFIXES)]
    assert len(island) == 12
    for name, value in state.items():
        assert value.dtype == (torch.float32 if name in island else dtype), name
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_transformer_equals_diffusers_loading(
    tiny_checkpoint: Path, tiny_diffusers_checkpoint: Path
) -> None:
    """Official -> ours, diffusers layout -> ours, and diffusers' own loader give the same bits."""
    theirs = MiniMaxH3Transformer3DModel.from_pretrained(
        tiny_diffusers_checkpoint / "transformer", torch_dtype=torch.bfloat16
    )
    expected = dit_from_diffusers().to_ours(theirs.state_dict())
    for root in (tiny_checkpoint, tiny_diffusers_checkpoint):
        ours = load_transformer(identify(root, "fl2va"), CPU, torch.bfloat16).state_dict()
        assert set(ours) == set(expected)
        for name, value in ours.items():
            assert value.dtype == expected[name].dtype, name
            assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("component", ["video_vae", "audio_vae"])
def test_autoencoders_equal_diffusers_loading(
    tiny_checkpoint: Path, tiny_diffusers_checkpoint: Path, component: str
) -> None:
    classes = {
        "video_vae": (AutoencoderKLMiniMaxH3, "vae", torch.zeros(1, 24, 7, 2, 2)),
        "audio_vae": (AutoencoderKLMiniMaxH3Audio, "audio_vae", torch.zeros(1, 32, 3)),
    }
    kind, folder, latents = classes[component]
    theirs = kind.from_pretrained(tiny_diffusers_checkpoint / folder).eval()
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn(latents.shape, generator=generator)
    with torch.inference_mode():
        expected = theirs.decode(latents).sample
    for root in (tiny_checkpoint, tiny_diffusers_checkpoint):
        ours = LOADERS[component](identify(root, "fl2va"))
        state = theirs.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in ours.state_dict().items())
        with torch.inference_mode():
            assert torch.equal(ours.decode(latents).sample, expected)


def test_computed_buffers_are_real(tiny_checkpoint: Path) -> None:
    manifest = identify(tiny_checkpoint, "fl2va")
    video = _load_video(manifest)
    arguments = video_vae_arguments(manifest)
    fresh = AutoencoderKLMiniMaxH3(**arguments)
    assert torch.equal(video.decoder.rope.inv_freq, fresh.decoder.rope.inv_freq)
    for component in LOADERS:
        module = LOADERS[component](manifest)
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            assert value.device == CPU, name


class _Forgetful(nn.Module):
    """Keeps a buffer that no checkpoint holds and no constructor computes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)
        self.register_buffer("offsets", torch.zeros(2), persistent=False)


def test_a_buffer_without_values_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"linear.weight": torch.eye(2)}, tmp_path / "model.safetensors")
    files = read_component(tmp_path, "model")
    with pytest.raises(CheckpointError, match="without values after loading: offsets"):
        load_weights(build_on_meta(_Forgetful), files, unchanged(), device=CPU, dtype_of=_fp32)


def test_the_host_holds_one_group_at_a_time(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bf16 sources that are cast to fp32 must be gone before the next group is read."""
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def counted(*arguments: object, **options: object) -> torch.Tensor:
        nonlocal most
        tensor = read(*arguments, **options)
        if tensor.dtype == torch.bfloat16:
            alive.append(weakref.ref(tensor))
        most = max(most, sum(reference() is not None for reference in alive))
        return tensor

    read = payload.read_tensor
    monkeypatch.setattr(payload, "read_tensor", counted)
    load_transformer(identify(tiny_checkpoint, "fl2va"), CPU, torch.float32)
    assert len(alive) > 40
    assert most == 1


def test_no_parameter_keeps_more_memory_than_its_own(tiny_checkpoint: Path) -> None:
    for component in ("transformer", "video_vae"):
        module = LOADERS[component](identify(tiny_checkpoint, "fl2va"))
        for name, value in module.named_parameters():
            assert value.untyped_storage().nbytes() == value.nbytes, name


def test_unused_tensors_are_checked_but_not_loaded(tiny_checkpoint: Path) -> None:
    manifest = identify(tiny_checkpoint, "fl2va")
    arguments = video_vae_arguments(manifest)
    decoder = build_on_meta(lambda: AutoencoderKLMiniMaxH3(**arguments))
    every = decoder.state_dict()
    del decoder.encoder, decoder.quant_conv
    left_out = {name: value for name, value in every.items() if name not in decoder.state_dict()}
    files, keys = manifest.weights["video_vae"], video_vae_keys(manifest)
    report = load_weights(decoder, files, keys, device=CPU, dtype_of=_fp32, unused=left_out)
    assert report.tensors == len(every) - len(left_out)
    with pytest.raises(CheckpointError, match=r"extra: encoder\.conv_in\.bias"):
        load_weights(decoder, files, keys, device=CPU, dtype_of=_fp32)
    left_out["quant_conv.bias"] = torch.empty(7, device="meta")
    with pytest.raises(CheckpointError, match=r"quant_conv\.bias \[48\] instead of \[7\]"):
        load_weights(decoder, files, keys, device=CPU, dtype_of=_fp32, unused=left_out)


def test_a_group_may_straddle_shards(tmp_path: Path) -> None:
    import json

    from safetensors.torch import save_file

    save_file({"q": torch.full((1, 2), 1.0)}, tmp_path / "b.safetensors")
    save_file(
        {"k": torch.full((1, 2), 2.0), "v": torch.full((1, 2), 3.0)}, tmp_path / "a.safetensors"
    )
    where = {"q": "b.safetensors", "k": "a.safetensors", "v": "a.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    [joined] = [rule for rule in dit_from_diffusers().rules if len(rule.checkpoint) == 3][:1]
    keys = KeyMap([Rule(("q", "k", "v"), ("weight",), joined.transform)])
    module = build_on_meta(lambda: nn.Linear(2, 3, bias=False))
    load_weights(module, read_component(tmp_path, "model"), keys, device=CPU, dtype_of=_fp32)
    assert module.weight.tolist() == [[1, 1], [2, 2], [3, 3]]
