import torch
from oracles.diffusers_dit import ATTENTION, CONVERTER, random_inputs, small_layout

from minimax_h3.dit.dummy import (
    OUTLIER,
    OUTLIER_DAMPING,
    RELEASED,
    dummy_transformer,
    outlier_channels,
)
from minimax_h3.dit.model import FP32_MODULES
from minimax_h3.packing.row_times import class_times, row_times

CPU = torch.device("cpu")


def test_same_seed_same_weights() -> None:
    first, again, other = (dummy_transformer(CONVERTER, CPU, seed=seed) for seed in (1, 1, 2))
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    assert not torch.equal(first.text_in.weight, other.text_in.weight)
    assert torch.equal(first.blocks[1].adaln.weight, again.blocks[1].adaln.weight)
    assert not torch.equal(first.blocks[0].adaln.weight, first.blocks[1].adaln.weight)


def test_adaln_is_drawn_when_read_or_kept() -> None:
    drawn = dummy_transformer(CONVERTER, CPU)
    kept = dummy_transformer(CONVERTER, CPU, resident_adaln=True)
    missing = set(kept.state_dict()) - set(drawn.state_dict())
    assert missing == {f"blocks.{i}.adaln.{leaf}" for i in range(2) for leaf in ("weight", "bias")}
    for ours, theirs in zip(drawn.blocks, kept.blocks, strict=True):
        assert torch.equal(ours.adaln.weight, theirs.adaln.weight)
        assert torch.equal(ours.adaln.bias, theirs.adaln.bias)


def test_dtypes_are_those_of_a_checkpoint() -> None:
    model = dummy_transformer(CONVERTER, CPU)
    for name, parameter in model.named_parameters():
        island = name.split(".")[0] in FP32_MODULES
        assert parameter.dtype == (torch.float32 if island else torch.bfloat16), name
        assert not parameter.is_meta


def test_outlier_channels_are_huge_and_the_forward_stays_finite() -> None:
    model, layout = dummy_transformer(CONVERTER, CPU, torch.float32), small_layout()
    channels = outlier_channels(CONVERTER.hidden_size)
    assert (model.video_in.bias[channels] == OUTLIER).all()
    assert torch.allclose(model.blocks[0].norm1.weight[channels], torch.tensor(OUTLIER_DAMPING))
    times = row_times(layout, class_times(0.3, 0.6))
    with torch.inference_mode():
        velocities = model(
            *random_inputs(CONVERTER, layout),
            layout,
            times.times,
            times.index,
            (0, layout.num_rows),
            ATTENTION,
        )
    for velocity in velocities:
        assert velocity.isfinite().all()
        assert 0.01 < float(velocity.std()) < 100


def test_released_sizes() -> None:
    assert (RELEASED.hidden_size, RELEASED.inner_dim, RELEASED.num_layers) == (5376, 7168, 50)
