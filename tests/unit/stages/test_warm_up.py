"""A model is loaded when its stated shapes have run, and says how long they took."""

import logging
from pathlib import Path

import pytest

from minimax_h3.core.config import StageConfig
from minimax_h3.core.warm_up import warm_up_plans
from minimax_h3.stages.audio_decoder import AudioDecoderStage
from minimax_h3.stages.base import StageContext
from minimax_h3.stages.condition_encoder import ConditionEncoderStage
from minimax_h3.stages.dit import DitStage
from minimax_h3.stages.text_encoder import TextEncoderStage
from minimax_h3.stages.video_decoder import VideoDecoderStage

STAGES = (
    TextEncoderStage,
    ConditionEncoderStage,
    DitStage,
    VideoDecoderStage,
    AudioDecoderStage,
)


def nobody(*arguments: object, **options: object) -> dict[str, object]:
    return {}


@pytest.mark.parametrize("weights", ["checkpoint", "dummy"])
@pytest.mark.parametrize("stage", STAGES)
def test_every_computing_stage_runs_the_shapes(
    tiny_checkpoint: Path, caplog: pytest.LogCaptureFixture, stage: type, weights: str
) -> None:
    caplog.set_level(logging.INFO)
    config = StageConfig(
        checkpoint_dir=str(tiny_checkpoint),
        device="cpu",
        weights=weights,
        warm_up="64x32x107, 32x64x120",
    )
    stage.load(StageContext(config, tiny_checkpoint, nobody, logging.getLogger("stage")))
    told = [record.getMessage() for record in caplog.records if "warm-up" in record.getMessage()]
    assert [line.rsplit(":")[0] for line in told] == ["warm-up 64x32x107", "warm-up 32x64x124"]
    assert all(line.endswith(" s") for line in told)
    assert ("dummy weights" in caplog.text) is (weights == "dummy")


def test_no_shape_is_run_unless_it_is_stated() -> None:
    assert warm_up_plans("") == ()
    [plan] = warm_up_plans("1344x768x124")
    assert (plan.packed_rows, plan.num_forwards) == (37_966, 1)
