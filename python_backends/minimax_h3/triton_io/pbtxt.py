"""`config.pbtxt` texts, rendered from `core.contracts` and a `StageConfig`.

The files in `model_repository/` are this module's output for the default configuration; a test
compares them. Tensors that stay inside the ensemble carry a leading underscore there.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from minimax_h3.core.config import StageConfig
from minimax_h3.core.contracts import ENSEMBLE, ENSEMBLE_STEPS, MODELS, ModelSpec, TensorSpec
from minimax_h3.core.errors import ConfigError

HEADER = "# Rendered by `python -m minimax_h3.triton_io.render`; edits here are overwritten.\n"


@dataclass(frozen=True, slots=True)
class StepWiring:
    """One step of the ensemble.

    Attributes:
        model: the composing model.
        inputs: its input name -> ensemble tensor.
        outputs: its output name -> ensemble tensor; outputs that nobody takes are left out.
    """

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def wire_ensemble(
    ensemble: ModelSpec = ENSEMBLE,
    steps: Sequence[str] = ENSEMBLE_STEPS,
    models: Mapping[str, ModelSpec] = MODELS,
) -> list[StepWiring]:
    """Connect the steps by tensor name: an earlier step's output wins over a client's input.

    Raises:
        ConfigError: a step's input or an output of the ensemble has no source.
    """
    exposed = {spec.name for spec in ensemble.outputs}
    sources = {spec.name: spec.name for spec in ensemble.inputs}
    inputs_of: dict[str, dict[str, str]] = {}
    produced: set[str] = set()
    for step in steps:
        missing = [spec.name for spec in models[step].inputs if spec.name not in sources]
        if missing:
            raise ConfigError(f"ensemble step {step}: no source for {', '.join(missing)}")
        inputs_of[step] = {spec.name: sources[spec.name] for spec in models[step].inputs}
        for spec in models[step].outputs:
            sources[spec.name] = spec.name if spec.name in exposed else f"_{spec.name}"
            produced.add(spec.name)
    if not exposed <= produced:
        raise ConfigError(f"ensemble outputs without a source: {', '.join(exposed - produced)}")
    taken = exposed | {tensor for inputs in inputs_of.values() for tensor in inputs.values()}
    return [
        StepWiring(
            step,
            inputs_of[step],
            {
                spec.name: sources[spec.name]
                for spec in models[step].outputs
                if sources[spec.name] in taken
            },
        )
        for step in steps
    ]


def render_model(spec: ModelSpec, config: StageConfig) -> str:
    """The `config.pbtxt` of one Python model."""
    blocks = [
        HEADER,
        f'name: "{spec.name}"\nbackend: "python"\nmax_batch_size: {spec.max_batch_size}\n',
        _tensors("input", spec.inputs),
        _tensors("output", spec.outputs),
        f"instance_group [ {{ count: {spec.instances} kind: {spec.kind} }} ]\n",
    ]
    if spec.decoupled:
        blocks.append("model_transaction_policy { decoupled: true }\n")
    if spec.max_batch_size:
        # No queue delay: it would be added to every step of a job that runs alone.
        blocks.append("dynamic_batching { }\n")
    for name, value in config.parameters().items():
        quoted = json.dumps(value, ensure_ascii=False)
        blocks.append(f'parameters {{ key: "{name}" value: {{ string_value: {quoted} }} }}\n')
    return "".join(blocks)


def render_ensemble() -> str:
    """The `config.pbtxt` of the ensemble."""
    steps = ",\n".join(_step(wiring) for wiring in wire_ensemble())
    return "".join(
        [
            HEADER,
            f'name: "{ENSEMBLE.name}"\nplatform: "ensemble"\nmax_batch_size: 0\n',
            _tensors("input", ENSEMBLE.inputs),
            _tensors("output", ENSEMBLE.outputs),
            f"ensemble_scheduling {{\n  step [\n{steps}\n  ]\n}}\n",
        ]
    )


def render_repository(config: StageConfig) -> dict[str, str]:
    """Model name -> `config.pbtxt` text, of every model and the ensemble."""
    texts = {
        name: render_model(_with_instances(spec, config), config) for name, spec in MODELS.items()
    }
    return {**texts, ENSEMBLE.name: render_ensemble()}


def _with_instances(spec: ModelSpec, config: StageConfig) -> ModelSpec:
    """A job waits for its turn inside a denoiser, so each admitted job needs an instance."""
    return replace(spec, instances=config.max_jobs) if spec.name == "denoiser" else spec


def _tensors(kind: str, specs: Sequence[TensorSpec]) -> str:
    lines = []
    for spec in specs:
        dims = ", ".join(str(dim) for dim in spec.dims)
        optional = " optional: true" if spec.optional else ""
        lines.append(
            f'  {{ name: "{spec.name}" data_type: TYPE_{spec.dtype} dims: [ {dims} ]{optional} }}'
        )
    return f"{kind} [\n" + ",\n".join(lines) + "\n]\n"


def _step(wiring: StepWiring) -> str:
    maps = [
        f'      {kind} {{ key: "{key}" value: "{value}" }}'
        for kind, names in (("input_map", wiring.inputs), ("output_map", wiring.outputs))
        for key, value in names.items()
    ]
    lines = [f'      model_name: "{wiring.model}"', "      model_version: -1", *maps]
    return "    {\n" + "\n".join(lines) + "\n    }"
