"""What the supervisor asks a running tritonserver over HTTP on this machine."""

import http
import http.client
import json
from collections.abc import Mapping

from minimax_h3.core.contracts import MODELS, PROBE_PARAMETER, WORKER_TOKEN_PARAMETER, ModelSpec
from minimax_h3.core.errors import H3Error

TIMEOUT_S = 5.0
HTTP2 = "\0\0"  # how a gRPC server's first frame begins, and no line of HTTP/1
_ADVICE = "pass Triton's HTTP address, by default port 8000"
WIRE_TYPES: Mapping[str, str] = {"STRING": "BYTES"}


class ServerApiError(H3Error):
    """The server did not answer a question of its supervisor, or answered with an error."""

    kind = "server_api"


class AddressError(ServerApiError):
    """No Triton server answers HTTP at the address; the message begins with it."""

    kind = "server_address"


class ServerApi:
    """Questions and orders to one server; each opens a connection of its own.

    Args:
        address: `host:port` of the HTTP service.
        token: makes calls trusted by the models of this start; empty for an ordinary client.
    """

    def __init__(self, address: str, token: str = "") -> None:
        self._address = address
        self._token = token

    def is_ready(self) -> bool:
        """Whether every model serves."""
        try:
            return (
                self._exchange("GET", "/v2/health/ready", None, TIMEOUT_S)[0] == http.HTTPStatus.OK
            )
        except ServerApiError:
            return False

    def check_address(self, timeout_s: float = TIMEOUT_S) -> None:
        """Find out whether a Triton server answers here at all, whatever its models do.

        Raises:
            AddressError: none does, or not in HTTP.
        """
        path = "/v2/health/live"
        try:
            code, _ = self._exchange("GET", path, None, timeout_s)
        except AddressError:
            raise
        except ServerApiError as error:
            reason = str(error.__cause__) or type(error.__cause__).__name__
            raise AddressError(f"{self._address} does not answer HTTP: {reason}") from error
        if code != http.HTTPStatus.OK:
            raise AddressError(f"{self._address} answers {path} with {code}; {_ADVICE}")

    def models(self, timeout_s: float = TIMEOUT_S) -> frozenset[str]:
        """Models of this product that the server holds: a DiT of another task type is not there.

        Raises:
            ServerApiError: refused, or no answer in time.
        """
        listed = json.loads(self._ask("/v2/repository/index", {}, timeout_s))
        return frozenset(entry["name"] for entry in listed) & MODELS.keys()

    def parameter(self, model: str, name: str, timeout_s: float = TIMEOUT_S) -> str:
        """A parameter that a model was loaded with; empty where it has none of that name.

        Raises:
            ServerApiError: refused, or no answer in time.
        """
        path = f"/v2/models/{model}/config"
        code, answer = self._exchange("GET", path, None, timeout_s)
        if code != http.HTTPStatus.OK:
            raise ServerApiError(f"{path}: {code}: {answer[:300]}")
        parameters = json.loads(answer).get("parameters", {})
        return str(parameters.get(name, {}).get("string_value", ""))

    def jobs(
        self, operation: Mapping[str, object], timeout_s: float = TIMEOUT_S
    ) -> dict[str, object]:
        """One operation of the `jobs` model.

        Raises:
            ServerApiError: refused, or no answer in time.
        """
        body = {
            "inputs": [_text("OP", json.dumps(operation))],
            "parameters": {WORKER_TOKEN_PARAMETER: self._token} if self._token else {},
        }
        answer = self._ask("/v2/models/jobs/infer", body, timeout_s)
        try:
            answered: dict[str, object] = json.loads(json.loads(answer)["outputs"][0]["data"][0])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ServerApiError(f"jobs: {answer[:100]!r} is no answer") from error
        return answered

    def probe(self, model: str, timeout_s: float = TIMEOUT_S) -> bool:
        """Whether a process of the model answers; it computes nothing for it."""
        spec = MODELS[model]
        route = "generate_stream" if spec.decoupled else "infer"
        try:
            self._ask(f"/v2/models/{model}/{route}", probe_body(spec), timeout_s)
        except ServerApiError:
            return False
        return True

    def load(self, model: str, timeout_s: float) -> None:
        """Load a model and wait until it serves.

        Raises:
            ServerApiError: it could not be loaded, or not in time.
        """
        self._ask(f"/v2/repository/models/{model}/load", {}, timeout_s)

    def unload(self, model: str) -> None:
        """Take a model out of service; its process may live on for requests in flight.

        Raises:
            ServerApiError: refused, or no answer in time.
        """
        self._ask(f"/v2/repository/models/{model}/unload", {}, TIMEOUT_S)

    def _ask(self, path: str, body: Mapping[str, object], timeout_s: float) -> str:
        code, answer = self._exchange("POST", path, json.dumps(body), timeout_s)
        if code == http.HTTPStatus.METHOD_NOT_ALLOWED:
            raise AddressError(
                f"{self._address} speaks HTTP but not Triton's protocol; {_ADVICE}, not of metrics"
            )
        # A stream answers with code 200 whatever became of the request.
        if code != http.HTTPStatus.OK or answer.startswith('data: {"error"'):
            raise ServerApiError(f"{path}: {code}: {answer[:300]}")
        return answer

    def _exchange(
        self, method: str, path: str, body: str | None, timeout_s: float
    ) -> tuple[int, str]:
        # Not urllib: it would ask a proxy of the environment for an address of this machine.
        try:
            connection = http.client.HTTPConnection(self._address, timeout=timeout_s)
        except http.client.InvalidURL as error:
            raise AddressError(f"{self._address!r} is no address; legal: HOST:PORT") from error
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            if str(error).startswith(HTTP2):
                told = f"{self._address} speaks gRPC, not HTTP; {_ADVICE}"
                raise AddressError(told) from error
            reason = str(error) or type(error).__name__
            raise ServerApiError(f"{path}: no answer from {self._address}: {reason}") from error
        finally:
            connection.close()


def probe_body(spec: ModelSpec) -> dict[str, object]:
    """The smallest request that a model's adapter answers without its stage."""
    if spec.decoupled:
        return {PROBE_PARAMETER: True}
    return {
        "parameters": {PROBE_PARAMETER: True},
        "inputs": [
            _empty(tensor.name, tensor.dtype, tensor.dims, batched=spec.max_batch_size > 0)
            for tensor in spec.inputs
            if not tensor.optional
        ],
    }


def _empty(name: str, dtype: str, dims: tuple[int, ...], *, batched: bool) -> dict[str, object]:
    """A tensor of the right type and as few elements as its shape allows."""
    shape = [*([1] if batched else []), *(max(dim, 0) for dim in dims)]
    count = 1
    for dim in shape:
        count *= dim
    filler: object = "" if dtype == "STRING" else 0
    return {
        "name": name,
        "datatype": WIRE_TYPES.get(dtype, dtype),
        "shape": shape,
        "data": [filler] * count,
    }


def _text(name: str, value: str) -> dict[str, object]:
    return {"name": name, "datatype": "BYTES", "shape": [1], "data": [value]}
