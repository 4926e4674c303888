"""Server parameters and the compatibility table."""

import logging
from dataclasses import asdict
from pathlib import Path

import pytest

from minimax_h3.core import compatibility
from minimax_h3.core.config import RANGES, StageConfig, parse_parameters
from minimax_h3.core.errors import ConfigError, NotAvailableError
from minimax_h3.core.plan import Plan, build_plan
from minimax_h3.core.request import GenerationRequest

LOG = logging.getLogger("test")
ROOT = Path(__file__).resolve().parents[3]


def test_parameters_round_trip() -> None:
    config = StageConfig(device="cuda:1", running_jobs=2, session_lease_s=5.5, media_root="/m")
    assert parse_parameters(config.parameters()) == config


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("devise", "cpu"),
        ("device", "tpu"),
        ("device", "cuda:x"),
        ("dtype", "fp16"),
        ("attention", "flash"),
        ("task_type", "t2va"),
        ("running_jobs", "0"),
        ("running_jobs", "two"),
        ("max_jobs", "1"),
        ("max_packed_rows", "0"),
        ("session_lease_s", "nan"),
        ("test_step_delay_ms", "-1"),
        ("test_hang_at_step", "-1"),
        ("media_root", "media"),
        ("weights", "none"),
        ("decoder_ops", "fast"),
        ("decoder_tiles", "-1"),
        ("warm_up", "1344x768"),
        ("warm_up", "1344x768x124,"),
        ("warm_up", "1344x767x124"),
        ("warm_up", "1344x768x400"),
    ],
)
def test_bad_parameters_are_named(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        parse_parameters({name: text})


def test_every_number_has_a_range_that_is_told() -> None:
    defaults = asdict(StageConfig())
    assert set(RANGES) == {name for name, value in defaults.items() if not isinstance(value, str)}
    for name, (low, high) in RANGES.items():
        assert low <= defaults[name] <= high
        for value in (low - 1, high + 1, 2 * high + 1):
            with pytest.raises(ConfigError) as refused:
                parse_parameters({name: str(value)})
            assert str(refused.value).endswith(f" is not legal; legal: {low}..{high}")
            assert str(refused.value).startswith(f"{name}: {type(defaults[name])(value)} is")


def test_the_fewest_rows_are_those_of_the_smallest_request() -> None:
    fields = {"prompt": "p", "width": 32, "height": 32, "num_frames": 96}
    facts = {"job_id": "j", "alias": "", "flow_shift": 12.0, "audio_flow_shift": 3.0}
    request = GenerationRequest.from_fields(fields)
    assert (
        build_plan(request, text_rows=1, received_at=0.0, **facts).packed_rows
        == RANGES["max_packed_rows"][0]
    )


@pytest.mark.parametrize(
    ("offload", "task_type"),
    [
        ("text_encoder", "fl2va"),  # alone
        ("text_encoder,text_encoder", "fl2va"),
        ("text_encoder,muxer", "fl2va"),
        ("text_encoder,dit_ref2va", "fl2va"),
        ("dit_fl2va,dit_ref2va", "ref2va"),
        ("", "fl2va"),
        ("text_encoder,none", "fl2va"),
    ],
)
def test_turns_need_two_models_of_this_server(offload: str, task_type: str) -> None:
    with pytest.raises(ConfigError) as refused:
        StageConfig(offload=offload, task_type=task_type)
    assert str(refused.value) == (
        f"offload: {offload!r} is not legal; legal: auto, none, or two or more of text_encoder, "
        f"dit_{task_type}, video_decoder, with commas"
    )


def test_offloaded_models_are_named() -> None:
    both = StageConfig(offload="dit_fl2va, dit_ref2va", task_type="combined")
    assert both.offloaded() == {"dit_fl2va", "dit_ref2va"}
    assert StageConfig().offloaded() == StageConfig(offload="none").offloaded() == frozenset()


def test_relative_checkpoints_count_from_the_model_folder(tmp_path: Path) -> None:
    folder = tmp_path / "repository" / "text_encoder"
    folder.mkdir(parents=True)
    assert StageConfig().checkpoint_path(folder) == tmp_path / "checkpoints" / "h3-tiny"
    assert StageConfig(checkpoint_dir="/a/b").checkpoint_path(folder) == Path("/a/b")


def test_refused_features_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = compatibility.Rule("dtype=bf16", "dtype=bf16", compatibility.REFUSED, "a reason")
    monkeypatch.setattr(compatibility, "RULES", (rule,))
    with pytest.raises(ConfigError, match="dtype=bf16: not available; a reason"):
        compatibility.check_start(StageConfig(dtype="bf16"), LOG)


def test_untested_features_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    compatibility.check_start(StageConfig(device="cuda", dtype="fp32"), LOG)
    assert "device=cuda with dtype=fp32 is untested" in caplog.text


def test_request_features_meet_server_features(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = compatibility.Rule("device=cpu", "return_frames", compatibility.REFUSED, "a reason")
    monkeypatch.setattr(compatibility, "RULES", (rule,))
    request = GenerationRequest.from_fields({"prompt": "p", "return_frames": True})
    with pytest.raises(NotAvailableError, match="device=cpu: excludes return_frames; a reason"):
        compatibility.check_request(request, StageConfig(device="cpu"))
    compatibility.check_request(request, StageConfig(device="cuda"))


def test_every_works_rule_names_a_test_that_exists() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for rule in compatibility.RULES:
        assert rule.verdict in (compatibility.WORKS, compatibility.REFUSED, compatibility.UNTESTED)
        if rule.verdict == compatibility.WORKS:
            assert f"def {rule.why}(" in tests, rule


def test_plan_round_trips_and_counts_rows() -> None:
    request = GenerationRequest.from_fields({"prompt": "p", "num_outputs": 3, "seed": 7})
    plan = build_plan(
        request,
        job_id="j",
        alias="",
        text_rows=60,
        flow_shift=12.0,
        audio_flow_shift=3.0,
        received_at=0.0,
    )
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.seeds == (7, 8, 9)
    assert plan.packed_rows == 37_770  # the worked example of the pipeline sheet
    assert plan.num_forwards == 49
    assert (plan.latent_frames, plan.latent_height, plan.latent_width) == (37, 48, 84)


@pytest.mark.parametrize(
    ("asked", "on_gpu", "blocks"),
    [
        ("auto", True, "compiled"),
        ("auto", False, "reference"),
        ("reference", True, "reference"),
        ("compiled", False, "compiled"),
    ],
)
def test_decoder_blocks_follow_the_device_unless_asked_for(
    asked: str, on_gpu: bool, blocks: str
) -> None:
    assert StageConfig(decoder_ops=asked).decoder_blocks(on_gpu=on_gpu) == blocks
