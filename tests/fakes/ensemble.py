"""Serves a model repository in this process: its `config.pbtxt` files over its real `model.py`s.

Requests, BLS calls and errors behave as on server 2.51. One thread a request; a model has as many
instances as its `config.pbtxt` says, each busy with one `execute()` at a time. No dynamic batching.
"""

import importlib.util
import queue
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
from fakes import pb_utils
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from minimax_h3.core.contracts import ENSEMBLE_STEPS, MODELS

pb_utils.install()

ModelConfig = model_config_pb2.ModelConfig
Arrays = dict[str, np.ndarray]


class InferenceError(Exception):
    """What a client would see: `code` is the Triton code's name."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


def read_config(file: Path) -> ModelConfig:
    """Parse a `config.pbtxt` with Triton's own schema; an unknown key is an error."""
    return text_format.Parse(file.read_text(), ModelConfig())


class InProcessServer:
    """All models of a repository.

    Args:
        repository: a model repository.
        parameters: override parameters of every model, by name.
    """

    def __init__(self, repository: Path, parameters: Mapping[str, str] | None = None) -> None:
        self.repository = repository
        self.configs = {
            file.parent.name: read_config(file) for file in repository.glob("*/config.pbtxt")
        }
        for config in self.configs.values():
            for name, value in (parameters or {}).items():
                if config.platform != "ensemble":
                    config.parameters[name].string_value = value
        self.calls: list[str] = []  # model of every execute(), in order
        self.dead: set[str] = set()  # models that answer as if their stub had died
        self._instances: dict[str, queue.Queue] = {}
        self._modules: dict[str, ModuleType] = {}
        pb_utils.serve_calls_with(self._answer_call)

    def __enter__(self) -> "InProcessServer":
        for name, config in sorted(self.configs.items()):
            if config.platform != "ensemble":
                self._load(name, config)
        return self

    def __exit__(self, *_: object) -> None:
        for instances in self._instances.values():
            while not instances.empty():
                instances.get().finalize()
        pb_utils.serve_calls_with(None)

    def infer(
        self,
        model: str,
        inputs: Arrays,
        outputs: Sequence[str] = (),
        request_id: str = "",
        cancelled: bool = False,
    ) -> Arrays:
        """One request of a client.

        Raises:
            InferenceError: the model refused or failed.
        """
        request = pb_utils.InferenceRequest(
            model,
            outputs,
            [pb_utils.Tensor(name, array) for name, array in inputs.items()],
            request_id,
            cancelled=cancelled,
        )
        response = self._serve(request)
        if response.has_error():
            raise InferenceError(response.error().code().name, response.error().message())
        return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}

    def _load(self, name: str, config: ModelConfig) -> None:
        folder = self.repository / name
        spec = importlib.util.spec_from_file_location(f"model_{name}", folder / "1" / "model.py")
        module = importlib.util.module_from_spec(spec)
        sys.path.append(str(folder / "1"))  # as the stub does
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(folder / "1"))
        group = config.instance_group[0]
        kind = model_config_pb2.ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_")
        self._instances[name] = queue.Queue()
        for index in range(group.count):
            instance = module.TritonPythonModel()
            instance.initialize(
                {
                    "model_config": json_format.MessageToJson(
                        config,
                        preserving_proto_field_name=True,
                        always_print_fields_with_no_presence=True,  # as the server does
                    ),
                    "model_instance_kind": kind,
                    "model_instance_name": f"{name}_0_{index}",
                    "model_instance_device_id": "0",
                    "model_repository": str(folder),
                    "model_version": "1",
                    "model_name": name,
                }
            )
            self._instances[name].put(instance)

    def _answer_call(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        if request.model_name not in self._instances:
            return _error("NOT_FOUND", f"Model '{request.model_name}' is not ready.")
        return self._serve(request)

    def _serve(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        config = self.configs[request.model_name]
        fault = _find_fault(request, config)
        if fault:
            return _error("INVALID_ARG", fault)
        if request.model_name in self.dead:
            return _error("INTERNAL", f"Stub process '{request.model_name}_0_0' is not healthy.")
        run = self._run_ensemble if config.platform == "ensemble" else self._execute
        response = run(request, config)
        if response.has_error():
            return response
        wanted = request.requested_output_names() or [output.name for output in config.output]
        return pb_utils.InferenceResponse(
            [tensor for tensor in response.output_tensors() if tensor.name() in wanted]
        )

    def _execute(
        self, request: pb_utils.InferenceRequest, config: ModelConfig
    ) -> pb_utils.InferenceResponse:
        self.calls.append(config.name)
        instances = self._instances[config.name]
        instance = instances.get()
        try:
            (response,) = instance.execute([request])
        finally:
            instances.put(instance)
        return response

    def _run_ensemble(
        self, request: pb_utils.InferenceRequest, config: ModelConfig
    ) -> pb_utils.InferenceResponse:
        tensors = {tensor.name(): tensor for tensor in request.inputs()}
        for step in config.ensemble_scheduling.step:
            inputs = [
                _renamed(tensors[source], name)
                for name, source in step.input_map.items()
                if source in tensors
            ]
            response = self._serve(
                pb_utils.InferenceRequest(
                    step.model_name,
                    list(step.output_map),
                    inputs,
                    request.request_id(),
                    cancelled=request.is_cancelled(),
                )
            )
            if response.has_error():
                error = response.error()
                return _error(error.code().name, f"in ensemble '{config.name}', {error.message()}")
            for tensor in response.output_tensors():
                target = step.output_map[tensor.name()]
                tensors[target] = _renamed(tensor, target)
        return pb_utils.InferenceResponse([tensors[output.name] for output in config.output])


def _renamed(tensor: pb_utils.Tensor, name: str) -> pb_utils.Tensor:
    """The server maps buffers, whatever is inside; strings too."""
    renamed = pb_utils.Tensor.__new__(pb_utils.Tensor)
    renamed.__dict__.update(tensor.__dict__, _name=name)
    return renamed


def _error(code: str, message: str) -> pb_utils.InferenceResponse:
    error = pb_utils.TritonError(message, getattr(pb_utils.TritonError, code))
    return pb_utils.InferenceResponse(error=error)


def _find_fault(request: pb_utils.InferenceRequest, config: ModelConfig) -> str:
    """The server's own checks, before a model sees the request."""
    declared = {spec.name: spec for spec in config.input}
    given = {tensor.name(): tensor for tensor in request.inputs()}
    unknown = sorted(set(given) - set(declared))
    if unknown:
        return f"unexpected inference input '{unknown[0]}' for model '{config.name}'"
    missing = [name for name, spec in declared.items() if not spec.optional and name not in given]
    if missing:
        return f"missing required input(s) {missing} for model '{config.name}'"
    outputs = {output.name for output in config.output}
    if not set(request.requested_output_names()) <= outputs:
        return f"unexpected inference output for model '{config.name}'"
    for name, tensor in given.items():
        wire_type = model_config_pb2.DataType.Name(declared[name].data_type).removeprefix("TYPE_")
        if tensor.triton_dtype() != {"STRING": "BYTES"}.get(wire_type, wire_type):
            return f"inference input '{name}' data-type is '{tensor.triton_dtype()}'"
        dims = ([-1] if config.max_batch_size else []) + list(declared[name].dims)
        shape = tensor.shape()
        if len(shape) != len(dims) or any(
            dim not in (-1, size) for dim, size in zip(dims, shape, strict=True)
        ):
            return f"unexpected shape for input '{name}' for model '{config.name}'. Got {shape}"
    return ""


def run_stage_by_stage(checkpoint: Path, request: Arrays, **parameters: str) -> Arrays:
    """Serve one request model after model; see `stage_by_stage`.

    Args:
        checkpoint: absolute checkpoint folder.
        request: the client's inputs.
        parameters: other parameters of every model.
    """
    with server_of(checkpoint, **parameters) as server:
        return stage_by_stage(server, request)


def server_of(checkpoint: Path, **parameters: str) -> InProcessServer:
    """The product's own repository in this process.

    Args:
        checkpoint: absolute checkpoint folder.
        parameters: other parameters of every model.
    """
    repository = Path(__file__).resolve().parents[2] / "model_repository"
    return InProcessServer(repository, {"checkpoint_dir": str(checkpoint), **parameters})


def stage_by_stage(server: InProcessServer, request: Arrays) -> Arrays:
    """Serve one request model after model, in the ensemble's order.

    Returns:
        Every tensor of the request, ensemble-internal ones included.
    """
    tensors = dict(request)
    for model in ENSEMBLE_STEPS:
        names = [spec.name for spec in MODELS[model].inputs if spec.name in tensors]
        tensors |= server.infer(model, {name: tensors[name] for name in names})
    return tensors
