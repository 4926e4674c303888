"""`config.pbtxt` texts: Triton's own schema reads back what the contract says."""

from dataclasses import replace

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from minimax_h3.core.config import StageConfig
from minimax_h3.core.contracts import DIT_MAX_BATCH, ENSEMBLE, MODELS, ModelSpec, TensorSpec
from minimax_h3.core.errors import ConfigError
from minimax_h3.triton_io.pbtxt import (
    render_ensemble,
    render_model,
    render_repository,
    wire_ensemble,
)


def parse(text: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def tensor(name: str, *, optional: bool = False) -> TensorSpec:
    return TensorSpec(name, "FP32", (1,), "a test tensor", optional=optional)


def model(name: str, inputs: str, outputs: str) -> ModelSpec:
    return ModelSpec(name, tuple(map(tensor, inputs)), tuple(map(tensor, outputs)))


def test_tensors_instances_and_parameters_of_a_model() -> None:
    spec = ModelSpec(
        "m",
        (tensor("A"), replace(tensor("B", optional=True), dtype="STRING", dims=(-1, 3))),
        (replace(tensor("C"), dtype="BOOL"),),
        instances=3,
        kind="KIND_MODEL",
    )
    config = parse(render_model(spec, StageConfig(max_jobs=9)))
    assert (config.name, config.backend, config.max_batch_size) == ("m", "python", 0)
    first, second = config.input
    assert (first.name, first.data_type, list(first.dims)) == ("A", model_config_pb2.TYPE_FP32, [1])
    assert second.data_type == model_config_pb2.TYPE_STRING
    assert list(second.dims) == [-1, 3]
    assert (first.optional, second.optional) == (False, True)
    assert config.output[0].data_type == model_config_pb2.TYPE_BOOL
    (group,) = config.instance_group
    assert (group.count, group.kind) == (3, model_config_pb2.ModelInstanceGroup.KIND_MODEL)
    assert config.parameters["max_jobs"].string_value == "9"
    assert not config.HasField("dynamic_batching")


def test_a_batched_model_merges_without_a_delay() -> None:
    config = parse(render_repository(StageConfig())["dit_fl2va"])
    assert config.max_batch_size == DIT_MAX_BATCH
    assert config.HasField("dynamic_batching")
    assert config.dynamic_batching.max_queue_delay_microseconds == 0


def test_unbatched_models_never_batch_dynamically() -> None:
    # It would leak cancelled requests in an ensemble's fan-out.
    for name, text in render_repository(StageConfig()).items():
        config = parse(text)
        assert config.HasField("dynamic_batching") == (config.max_batch_size > 0), name


def test_every_model_carries_the_same_parameters() -> None:
    texts = render_repository(StageConfig(device="cpu"))
    for name in MODELS:
        values = {key: value.string_value for key, value in parse(texts[name]).parameters.items()}
        assert values == StageConfig(device="cpu").parameters()


def test_each_admitted_job_has_a_denoiser() -> None:
    texts = render_repository(StageConfig(running_jobs=2, max_jobs=5))
    counts = {name: parse(texts[name]).instance_group[0].count for name in MODELS}
    assert counts.pop("denoiser") == 5
    assert set(counts.values()) == {1}


@pytest.mark.parametrize("path", ['a "quoted" \\ path', "Übung", "two\nlines"])
def test_parameter_values_survive_quoting(path: str) -> None:
    text = render_model(MODELS["jobs"], StageConfig(checkpoint_dir=path))
    assert parse(text).parameters["checkpoint_dir"].string_value == path


def test_inner_tensors_carry_an_underscore_and_exposed_ones_do_not() -> None:
    config = parse(render_ensemble())
    assert config.platform == "ensemble"
    assert [spec.name for spec in config.output] == [spec.name for spec in ENSEMBLE.outputs]
    produced = {
        name for step in config.ensemble_scheduling.step for name in step.output_map.values()
    }
    exposed = {spec.name for spec in ENSEMBLE.outputs}
    assert exposed < produced
    assert all(name.startswith("_") for name in produced - exposed)


def test_an_earlier_step_wins_over_the_client() -> None:
    ensemble = model("e", "AB", "C")
    models = {"first": model("first", "AB", "B"), "second": model("second", "AB", "C")}
    first, second = wire_ensemble(ensemble, ("first", "second"), models)
    assert first.inputs == {"A": "A", "B": "B"}
    assert first.outputs == {"B": "_B"}
    assert second.inputs == {"A": "A", "B": "_B"}
    assert second.outputs == {"C": "C"}


def test_outputs_that_nobody_takes_are_not_asked_for() -> None:
    models = {"only": model("only", "A", "BC")}
    (step,) = wire_ensemble(model("e", "A", "C"), ("only",), models)
    assert step.outputs == {"C": "C"}


def test_an_input_without_a_source_is_an_error() -> None:
    models = {"only": model("only", "AX", "B")}
    with pytest.raises(ConfigError, match="step only: no source for X"):
        wire_ensemble(model("e", "A", "B"), ("only",), models)


def test_an_output_without_a_source_is_an_error() -> None:
    models = {"only": model("only", "A", "B")}
    with pytest.raises(ConfigError, match="without a source: C"):
        wire_ensemble(model("e", "A", "BC"), ("only",), models)
