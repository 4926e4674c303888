"""The two ways to a Triton server, behind one small protocol.

gRPC is tritonclient's own client. HTTP takes only the request and response encoding from
tritonclient (its public `generate_request_body` and `parse_response_body`) and sends the bytes with
`http.client`: tritonclient's HTTP client runs on gevent, allows a request 60 s of silence unless
told otherwise, and must stay in one thread, while a job here is silent for minutes and its progress
is asked for from another thread. Bodies of hundreds of megabytes pass either way.
"""

import contextlib
import http.client
import json
import socket
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from h3_client.errors import (
    CONNECTION,
    DEADLINE_EXCEEDED,
    INTERNAL,
    INVALID_ARGUMENT,
    NOT_FOUND,
    UNAVAILABLE,
    H3ClientError,
    clean_message,
    server_error,
)
from h3_client.fields import InputTensor

CONNECT_TIMEOUT_S = 5.0
PROTOCOL_TIMEOUT_S = 1.0
HTTP2 = "\0\0"  # how a gRPC server's first frame begins, and no line of HTTP/1
# Triton answers more frequent pings on a silent connection with GOAWAY (its limit is 300 s).
KEEPALIVE_S = 330

_NOT_TRITON = (http.client.NOT_FOUND, http.client.METHOD_NOT_ALLOWED, http.client.NOT_IMPLEMENTED)
_STATUS_OF_HTTP = {
    400: INVALID_ARGUMENT,
    404: NOT_FOUND,
    409: "ALREADY_EXISTS",
    500: INTERNAL,
    501: "UNIMPLEMENTED",
    503: UNAVAILABLE,
}


class Transport(Protocol):
    """What `H3Client` needs of a protocol; calls may come from several threads at once."""

    url: str

    def infer(
        self,
        model: str,
        inputs: Sequence[InputTensor],
        outputs: Sequence[str],
        request_id: str,
        timeout_s: float | None,
    ) -> dict[str, NDArray[np.generic]]:
        """One blocking inference; returns the named outputs that the server sent.

        Raises:
            H3ClientError: the server's error, a lost connection or the time limit.
        """
        ...

    def is_live(self) -> bool:
        """Whether a server answers at all. Raises H3ClientError(CONNECTION) when none does."""
        ...

    def is_ready(self, model: str) -> bool:
        """Whether the server and the model take requests; raises as `is_live`."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def no_server(url: str, protocol: str, reason: object) -> H3ClientError:
    """The error for a server that cannot be reached, or not in this protocol."""
    if protocol == "gRPC":
        with contextlib.suppress(OSError, http.client.HTTPException):
            return _spoken_to_in_grpc(url)
    return H3ClientError(CONNECTION, f"no Triton server answers at {url} ({protocol}): {reason}")


def _spoken_to_in_grpc(url: str) -> H3ClientError:
    """The error for an address that speaks HTTP; raises as `http.client` where it does not."""
    connection = http.client.HTTPConnection(url.partition("/")[0], timeout=PROTOCOL_TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("POST", "/v2/repository/index")  # takes POST at any Triton server
        code = connection.getresponse().status
    if code in _NOT_TRITON:
        return _not_triton(url)
    advice = (
        'pass --http or http:// in front (in Python protocol="http"), or the gRPC address, by '
        "default port 8001"
    )
    return H3ClientError(CONNECTION, f"{url} speaks HTTP and was spoken to in gRPC: {advice}")


def _not_triton(url: str) -> H3ClientError:
    advice = "pass Triton's address, by default port 8001 (gRPC) or 8000 (HTTP), not the metrics'"
    return H3ClientError(CONNECTION, f"{url} speaks HTTP but not Triton's protocol: {advice}")


class GrpcTransport:
    """KServe over gRPC through `tritonclient.grpc`."""

    def __init__(self, url: str) -> None:
        import tritonclient.grpc as triton_grpc

        self.url = url
        self._grpc = triton_grpc
        keepalive = triton_grpc.KeepAliveOptions(
            keepalive_time_ms=KEEPALIVE_S * 1000,
            keepalive_timeout_ms=20_000,
            http2_max_pings_without_data=0,
        )
        self._client = triton_grpc.InferenceServerClient(url, keepalive_options=keepalive)

    def infer(
        self,
        model: str,
        inputs: Sequence[InputTensor],
        outputs: Sequence[str],
        request_id: str,
        timeout_s: float | None,
    ) -> dict[str, NDArray[np.generic]]:
        """See `Transport.infer`."""
        try:
            result = self._client.infer(
                model,
                [_fill(self._grpc.InferInput, tensor) for tensor in inputs],
                outputs=[self._grpc.InferRequestedOutput(name) for name in outputs],
                request_id=request_id,
                client_timeout=timeout_s,
            )
        except self._grpc.InferenceServerException as error:
            raise self._mapped(error, timeout_s) from error
        return _present(result, outputs)

    def is_live(self) -> bool:
        """See `Transport.is_live`."""
        return bool(self._asked(self._client.is_server_live))

    def is_ready(self, model: str) -> bool:
        """See `Transport.is_ready`."""
        if not self._asked(self._client.is_server_ready):
            return False
        return bool(self._asked(self._client.is_model_ready, model))

    def close(self) -> None:
        """See `Transport.close`."""
        self._client.close()

    def _asked(self, question: Any, *words: str) -> object:
        try:
            return question(*words, client_timeout=CONNECT_TIMEOUT_S)
        except self._grpc.InferenceServerException as error:
            raise no_server(self.url, "gRPC", error.message()) from error

    def _mapped(self, error: Any, timeout_s: float | None) -> H3ClientError:
        status = str(error.status() or "UNKNOWN").removeprefix("StatusCode.")
        message = clean_message(error.message() or "no message")
        if status == DEADLINE_EXCEEDED:
            return H3ClientError(status, f"no answer from {self.url} within {timeout_s} s")
        if status == UNAVAILABLE:  # a full server and a lost one carry the same word
            try:
                self.is_live()
            except H3ClientError as lost:
                return H3ClientError(CONNECTION, f"{lost.message}; the request failed: {message}")
        return server_error(status, message)


class HttpTransport:
    """KServe over plain HTTP/1.1, one connection a request.

    An idle kept-open connection would make a stopping Triton server wait for its whole exit limit.
    """

    def __init__(self, url: str) -> None:
        import tritonclient.http as triton_http

        self.url = url
        self._http = triton_http
        self._host, _, path = url.partition("/")
        self._base = f"/{path.strip('/')}" if path else ""

    def infer(
        self,
        model: str,
        inputs: Sequence[InputTensor],
        outputs: Sequence[str],
        request_id: str,
        timeout_s: float | None,
    ) -> dict[str, NDArray[np.generic]]:
        """See `Transport.infer`."""
        client = self._http.InferenceServerClient
        body, json_bytes = client.generate_request_body(
            [_fill(self._http.InferInput, tensor) for tensor in inputs],
            outputs=[self._http.InferRequestedOutput(name, binary_data=True) for name in outputs],
            request_id=request_id,
        )
        headers = {"Content-Type": "application/octet-stream"}
        if json_bytes is not None:
            headers["Inference-Header-Content-Length"] = str(json_bytes)
        code, answer, header_bytes = self._exchange(
            "POST", f"/v2/models/{model}/infer", body, headers, timeout_s
        )
        if code == http.client.METHOD_NOT_ALLOWED:  # of metrics, which answer any GET with 200
            raise _not_triton(self.url)
        if code != http.client.OK:
            raise _http_error(code, answer)
        result = client.parse_response_body(answer, header_length=header_bytes)
        return _present(result, outputs)

    def is_live(self) -> bool:
        """See `Transport.is_live`."""
        return self._is_ok("/v2/health/live")

    def is_ready(self, model: str) -> bool:
        """See `Transport.is_ready`."""
        return self._is_ok("/v2/health/ready") and self._is_ok(f"/v2/models/{model}/ready")

    def close(self) -> None:
        """See `Transport.close`; no connection outlives its request."""

    def _is_ok(self, path: str) -> bool:
        code, _, _ = self._exchange("GET", path, None, {}, CONNECT_TIMEOUT_S)
        return code == http.client.OK

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        timeout_s: float | None,
    ) -> tuple[int, bytes, int | None]:
        """One request; returns the HTTP code, the body, and its length of leading JSON if any."""
        with contextlib.closing(self._connect()) as connection:
            connection.sock.settimeout(timeout_s)
            try:
                connection.request(method, self._base + path, body, headers)
                response = connection.getresponse()
                answer = response.read()
            except TimeoutError as error:
                message = f"no answer from {self.url} within {timeout_s} s"
                raise H3ClientError(DEADLINE_EXCEEDED, message) from error
            except (OSError, http.client.HTTPException) as error:
                raise self._lost(error) from error
        json_bytes = response.headers.get("Inference-Header-Content-Length")
        return response.status, answer, None if json_bytes is None else int(json_bytes)

    def _lost(self, error: Exception) -> H3ClientError:
        if str(error).startswith(HTTP2):
            advice = "leave out --http and http://, or pass the HTTP address, by default port 8000"
            text = f"{self.url} speaks gRPC and was spoken to in HTTP: {advice}"
        else:
            reason = str(error) or type(error).__name__
            text = f"lost the Triton server at {self.url} (HTTP): {reason}"
        return H3ClientError(CONNECTION, text)

    def _connect(self) -> http.client.HTTPConnection:
        try:
            connection = http.client.HTTPConnection(self._host, timeout=CONNECT_TIMEOUT_S)
            connection.connect()
        except http.client.InvalidURL as error:
            message = f"url: {self.url!r} is not host:port ({error})"
            raise H3ClientError(INVALID_ARGUMENT, message) from error
        except OSError as error:
            raise no_server(self.url, "HTTP", error) from error
        # A peer that vanishes during a job of minutes is noticed by the kernel's probes.
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection


def _fill(kind: Any, tensor: InputTensor) -> Any:
    filled = kind(tensor.name, list(tensor.values.shape), tensor.datatype)
    filled.set_data_from_numpy(tensor.values)
    return filled


def _present(result: Any, outputs: Sequence[str]) -> dict[str, NDArray[np.generic]]:
    arrays = {name: result.as_numpy(name) for name in outputs}
    return {name: array for name, array in arrays.items() if array is not None}


def _http_error(code: int, body: bytes) -> H3ClientError:
    text = body.decode(errors="replace")
    try:
        message = str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):  # not Triton's form: a proxy in between answered
        message = f"HTTP {code}: {text[:200] or 'empty answer'}"
    return server_error(_STATUS_OF_HTTP.get(code, f"HTTP_{code}"), message)
