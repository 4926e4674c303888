"""The transformer against diffusers on the same weights, and against the sheet's own step list."""

import pytest
import torch
from diffusers import MiniMaxH3Transformer3DModel
from oracles.diffusers_dit import (
    ATTENTION,
    CONVERTER,
    NARROW,
    diffusers_transformer,
    diffusers_weights,
    random_inputs,
    random_transformer,
    relative_error,
    run_diffusers,
    small_layout,
)
from oracles.dit_forward import ReferenceTransformer, Rows

from minimax_h3.dit.model import FP32_MODULES, MiniMaxH3Transformer, Velocities
from minimax_h3.packing.layout import PackedLayout
from minimax_h3.packing.row_times import RowTimes, class_times, row_times
from minimax_h3.weights.dit_config import DiTConfig

# Relative to the largest output. Seen: 0 in both dtypes against diffusers, 1e-6 against the sheet
# (which sums in another order); the rest is room for other BLAS builds.
FP32_TOLERANCE = 1e-5
BF16_TOLERANCE = 2e-2

CONFIGS = pytest.mark.parametrize("config", [NARROW, CONVERTER], ids=["narrow", "converter"])
ANCHORS = pytest.mark.parametrize("anchors", [(), ("first",), ("last",), ("first", "last")])


def run(
    model: MiniMaxH3Transformer,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    layout: PackedLayout,
    times: RowTimes,
) -> Velocities:
    with torch.inference_mode():
        bounds = (0, layout.num_rows)
        return model(*inputs, layout, times.times, times.index, bounds, ATTENTION)


@CONFIGS
@ANCHORS
def test_fp32_forward_equals_diffusers(config: DiTConfig, anchors: tuple[str, ...]) -> None:
    model, layout = random_transformer(config), small_layout(anchors)
    inputs, times = random_inputs(config, layout), row_times(layout, class_times(0.3, 0.6))
    expected = run_diffusers(diffusers_transformer(model), *inputs, layout, times)
    for actual, reference in zip(run(model, inputs, layout, times), expected, strict=True):
        assert actual.dtype == torch.float32
        assert relative_error(actual, reference) <= FP32_TOLERANCE


@CONFIGS
@ANCHORS
def test_bf16_forward_follows_diffusers_rounding(
    config: DiTConfig, anchors: tuple[str, ...]
) -> None:
    exact, model = random_transformer(config), random_transformer(config).cast_(torch.bfloat16)
    layout = small_layout(anchors)
    inputs, times = random_inputs(config, layout), row_times(layout, class_times(0.3, 0.6))
    expected = run_diffusers(diffusers_transformer(model), *inputs, layout, times)
    wide = run(exact, inputs, layout, times)
    for actual, reference, full in zip(
        run(model, inputs, layout, times), expected, wide, strict=True
    ):
        assert actual.dtype == torch.float32
        # Well below BF16's own error: the operations round in the same order. Seen: 0.
        assert relative_error(actual, reference) <= 0.5 * relative_error(reference, full)
        assert relative_error(actual, full) <= BF16_TOLERANCE


@pytest.mark.parametrize("times", [(0.0, 0.0), (0.999, 0.2), (0.9995, 0.9995)])
def test_forward_equals_diffusers_at_any_number_of_times(times: tuple[float, float]) -> None:
    model, layout = random_transformer(NARROW), small_layout(("first",))
    inputs, rows = random_inputs(NARROW, layout), row_times(layout, class_times(*times))
    expected = run_diffusers(diffusers_transformer(model), *inputs, layout, rows)
    for actual, reference in zip(run(model, inputs, layout, rows), expected, strict=True):
        assert relative_error(actual, reference) <= FP32_TOLERANCE


@CONFIGS
@ANCHORS
def test_forward_equals_the_sheet_step_by_step(config: DiTConfig, anchors: tuple[str, ...]) -> None:
    model, layout = random_transformer(config, seed=3), small_layout(anchors)
    inputs, times = random_inputs(config, layout), row_times(layout, class_times(0.3, 0.6))
    streams = {0: "video", 1: "text", 2: "audio"}
    rows = Rows(
        tags=layout.token_tags.tolist(),
        streams=[streams[span.stream] for span in layout.spans for _ in range(span.rows)],
        positions=layout.positions,
        times=times.times[times.index].tolist(),
        documents=[(0, layout.num_rows)],
    )
    weights = {name: weight.double() for name, weight in model.state_dict().items()}
    oracle = ReferenceTransformer(weights, config.num_heads, config.head_dim, config.rope_freqs)
    video, audio, text = (tensor.double() for tensor in inputs)
    expected = oracle.forward(video, audio, text, rows)
    for actual, reference in zip(run(model, inputs, layout, times), expected, strict=True):
        assert relative_error(actual, reference) <= FP32_TOLERANCE


def test_parameter_names_and_shapes() -> None:
    stack = {
        "norm1.weight": (64,),
        "attn.qkv.weight": (192, 64),
        "attn.q_norm.weight": (32,),
        "attn.k_norm.weight": (32,),
        "attn.out.weight": (64, 64),
        "norm2.weight": (64,),
        "mlp.fc1.weight": (256, 64),
        "mlp.fc2.weight": (64, 128),
    }
    adaln = {"adaln.weight": (18 * 64, 32), "adaln.bias": (18 * 64,)}
    expected = {
        **{f"refiner.blocks.{i}.{name}": s for i in range(2) for name, s in stack.items()},
        **{f"blocks.{i}.{name}": s for i in range(2) for name, s in (stack | adaln).items()},
        "refiner.final_norm.weight": (64,),
        "final.norm.weight": (64,),
        "final.adaln.weight": (128, 32),
        "final.adaln.bias": (128,),
        "text_in.weight": (64, 48),
        "text_in.bias": (64,),
        "video_in.weight": (64, 96),
        "video_in.bias": (64,),
        "audio_in.weight": (64, 32),
        "audio_in.bias": (64,),
        "time_embedder.linear_1.weight": (64, 16),
        "time_embedder.linear_1.bias": (64,),
        "time_embedder.linear_2.weight": (32, 64),
        "time_embedder.linear_2.bias": (32,),
        "video_out.weight": (96, 64),
        "video_out.bias": (96,),
        "audio_out.weight": (32, 64),
        "audio_out.bias": (32,),
    }
    state = MiniMaxH3Transformer(CONVERTER).state_dict()
    assert {name: tuple(weight.shape) for name, weight in state.items()} == expected


def test_parameter_count_is_the_reference_count() -> None:
    ours = sum(p.numel() for p in MiniMaxH3Transformer(NARROW).parameters())
    theirs = sum(
        p.numel() for p in MiniMaxH3Transformer3DModel(**NARROW.to_diffusers()).parameters()
    )
    assert ours == theirs == 39_334


def test_released_size_on_the_meta_device() -> None:
    released = DiTConfig(
        hidden_size=5376,
        num_layers=50,
        num_refiner_layers=2,
        num_heads=56,
        head_dim=128,
        ffn_dim=14_336,
        text_dim=5120,
        freq_dim=256,
        time_hidden_dim=5376,
        time_out_dim=2688,
    )
    with torch.device("meta"):
        model = MiniMaxH3Transformer(released, torch.bfloat16)
    assert sum(p.numel() for p in model.parameters()) == 33_122_992_896
    islands = [p for p in model.parameters() if p.dtype == torch.float32]
    assert (len(islands), sum(p.numel() for p in islands)) == (12, 17_222_144)


@pytest.mark.parametrize("how", ["constructed", "cast"])
def test_twelve_tensors_stay_fp32_under_bf16(how: str) -> None:
    model = (
        MiniMaxH3Transformer(NARROW, torch.bfloat16)
        if how == "constructed"
        else MiniMaxH3Transformer(NARROW).cast_(torch.bfloat16)
    )
    fp32 = {name for name, p in model.named_parameters() if p.dtype == torch.float32}
    assert len(fp32) == 12
    assert {name.split(".")[0] for name in fp32} == set(FP32_MODULES)
    assert {p.dtype for p in model.parameters()} == {torch.float32, torch.bfloat16}
    assert model.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "ours", "theirs"),
    [
        ("gate and value", "blocks.0.mlp.fc1.weight", "transformer_blocks.0.ff.net.0.proj.weight"),
        (
            "refiner",
            "refiner.blocks.1.mlp.fc1.weight",
            "token_refiner.refiner_blocks.1.ff.net.0.proj.weight",
        ),
    ],
)
def test_feed_forward_halves_are_swapped_against_diffusers(
    name: str, ours: str, theirs: str
) -> None:
    model = random_transformer(NARROW)
    gate, value = model.state_dict()[ours].chunk(2)
    assert torch.equal(diffusers_weights(model)[theirs], torch.cat((value, gate))), name
