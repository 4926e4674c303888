"""`model_repository/` against `core.contracts`."""

import ast
from pathlib import Path

import pytest
from fakes.ensemble import read_config
from tritonclient.grpc import model_config_pb2

from minimax_h3.core.config import StageConfig
from minimax_h3.core.constants import TASKS
from minimax_h3.core.contracts import ENSEMBLE, MODELS, ROUTES, ModelSpec, TensorSpec
from minimax_h3.triton_io.pbtxt import wire_ensemble
from minimax_h3.triton_io.render import stale_files

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = ROOT / "model_repository"
MAX_SHIM_LINES = 60


def outputs(spec: ModelSpec) -> dict[str, TensorSpec]:
    return {tensor.name: tensor for tensor in spec.outputs}


def fits(producer: TensorSpec, consumer: TensorSpec) -> bool:
    """Whether every tensor of the producer's shape may be one of the consumer's."""
    return (
        producer.dtype == consumer.dtype
        and len(producer.dims) == len(consumer.dims)
        and all(
            -1 in (ours, theirs) or ours == theirs
            for ours, theirs in zip(producer.dims, consumer.dims, strict=True)
        )
    )


def test_files_are_as_rendered() -> None:
    stale = [str(file.relative_to(ROOT)) for file in stale_files(REPOSITORY, StageConfig())]
    assert stale == [], "run `make render`"


def test_folders_are_the_models() -> None:
    folders = {folder.name for folder in REPOSITORY.iterdir() if folder.is_dir()}
    assert folders == {*MODELS, ENSEMBLE.name}
    assert (REPOSITORY / ENSEMBLE.name / "1" / ".gitkeep").is_file()


@pytest.mark.parametrize("name", [*MODELS, ENSEMBLE.name])
def test_triton_reads_what_the_contract_says(name: str) -> None:
    """Parsed by Triton's own schema, against the contract itself and not its renderer."""
    spec = MODELS.get(name, ENSEMBLE)
    config = read_config(REPOSITORY / name / "config.pbtxt")
    kinds = model_config_pb2.DataType
    assert config.name == name
    assert config.max_batch_size == spec.max_batch_size
    assert {(t.name, kinds.Name(t.data_type), tuple(t.dims), t.optional) for t in config.input} == {
        (t.name, f"TYPE_{t.dtype}", t.dims, t.optional) for t in spec.inputs
    }
    assert {(t.name, kinds.Name(t.data_type), tuple(t.dims)) for t in config.output} == {
        (t.name, f"TYPE_{t.dtype}", t.dims) for t in spec.outputs
    }


@pytest.mark.parametrize("name", MODELS)
def test_instances_are_stated(name: str) -> None:
    (group,) = read_config(REPOSITORY / name / "config.pbtxt").instance_group
    kind = model_config_pb2.ModelInstanceGroup.Kind.Name(group.kind)
    assert kind == MODELS[name].kind
    assert kind in ("KIND_CPU", "KIND_MODEL")  # KIND_GPU does not load without that GPU
    assert group.count == MODELS[name].instances


def test_every_input_of_every_step_is_produced_before_it() -> None:
    config = read_config(REPOSITORY / ENSEMBLE.name / "config.pbtxt")
    known = {tensor.name for tensor in config.input}
    for step in config.ensemble_scheduling.step:
        spec = MODELS[step.model_name]
        assert set(step.input_map) == {tensor.name for tensor in spec.inputs}
        assert set(step.input_map.values()) <= known, step.model_name
        assert set(step.output_map) <= set(outputs(spec))
        known |= set(step.output_map.values())
    assert {tensor.name for tensor in config.output} <= known


def test_types_and_shapes_agree_along_every_wire() -> None:
    sources = {tensor.name: tensor for tensor in ENSEMBLE.inputs}
    for step in wire_ensemble():
        for tensor in MODELS[step.model].inputs:
            assert fits(sources[step.inputs[tensor.name]], tensor), (step.model, tensor.name)
        produced = outputs(MODELS[step.model])
        sources |= {wire: produced[name] for name, wire in step.outputs.items()}
    for tensor in ENSEMBLE.outputs:
        assert fits(sources[tensor.name], tensor), tensor.name


def test_only_optional_inputs_of_the_ensemble_feed_optional_inputs() -> None:
    optional = {tensor.name for tensor in ENSEMBLE.inputs if tensor.optional}
    for step in wire_ensemble():
        for tensor in MODELS[step.model].inputs:
            # A step whose required input stays away fails with a message nobody understands.
            assert tensor.optional or step.inputs[tensor.name] not in optional, tensor.name


@pytest.mark.parametrize("model", sorted(set(ROUTES.values())))
def test_what_the_denoiser_forwards_fits_the_dit(model: str) -> None:
    dit = {tensor.name: tensor for tensor in MODELS[model].inputs}
    for tensor in MODELS["denoiser"].inputs:
        if tensor.opaque:
            target = dit[tensor.name]
            batched = TensorSpec(target.name, target.dtype, (1, *target.dims), target.meaning)
            assert fits(tensor, batched), tensor.name
            assert target.optional, tensor.name  # `step` and `end` go without


def test_routes_lead_to_models_for_known_tasks() -> None:
    assert set(ROUTES.values()) <= set(MODELS)
    assert set(ROUTES) <= set(TASKS)


@pytest.mark.parametrize("name", MODELS)
def test_a_shim_only_names_its_stage(name: str) -> None:
    text = (REPOSITORY / name / "1" / "model.py").read_text()
    assert len(text.splitlines()) <= MAX_SHIM_LINES
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    kinds = [type(node) for node in tree.body]
    assert kinds == [ast.Expr, ast.ImportFrom, ast.ImportFrom, ast.Assign]
    (target,) = tree.body[-1].targets
    assert target.id == "TritonPythonModel"
