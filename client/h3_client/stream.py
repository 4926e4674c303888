"""Requests whose progress comes with them: `minimax_h3_stream` over gRPC.

with ClipStream("127.0.0.1:8001", "a red circle", {"width": 128, "height": 128}) as stream:
    for event in stream:
        print(event["event"], event.get("step"))
    clips = stream.result.mp4

Leaving the block before the end cancels the job on the server.
"""

import queue
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np

from h3_client.errors import (
    CANCELLED,
    CONNECTION,
    INTERNAL,
    INVALID_ARGUMENT,
    NOT_FOUND,
    UNAVAILABLE,
    H3ClientError,
    clean_message,
    server_error,
)
from h3_client.fields import InputTensor, encode_request, text_input
from h3_client.results import GenerationResult, json_object
from h3_client.transport import no_server

STREAM_MODEL = "minimax_h3_stream"
SILENCE_S = 4.5  # two heartbeats and some: after that the stream's process is dead

# The status that a unary request would have had: a stream's errors carry only a kind.
STATUS_OF_KIND = {
    "invalid_request": INVALID_ARGUMENT,
    "not_available": INVALID_ARGUMENT,
    "capacity": UNAVAILABLE,
    "deadline_refused": UNAVAILABLE,
    "worker_lost": UNAVAILABLE,
    "cancelled": CANCELLED,
    "deadline_exceeded": CANCELLED,
    "unknown_session": NOT_FOUND,
    "unknown_result": NOT_FOUND,
}
_KIND_AND_MESSAGE = re.compile(r"\[(?P<kind>[a-z_]+)\] (?P<message>.*)", re.DOTALL)


class ClipStream:
    """One streamed request; iterate over its events, then read `result`.

    Args:
        url: host:port of the server's gRPC service.
        prompt: what to make.
        fields: further request fields, as for `H3Client.generate`.
        request_id: alias of the job; a fresh one if None.
        result_as: `bytes`, or `handle` to leave the clips on the server, see `H3Client.result`.
        silence_s: longest wait for the next event; a server that lives speaks every 2 s.

    Attributes:
        events_s: seconds from sending to each event.
        result: what was made; None until the iteration has ended.
    """

    def __init__(
        self,
        url: str,
        prompt: str,
        fields: Mapping[str, object] | None = None,
        *,
        request_id: str | None = None,
        result_as: str = "bytes",
        silence_s: float = SILENCE_S,
    ) -> None:
        import tritonclient.grpc as triton_grpc

        self.request_id = request_id or uuid.uuid4().hex
        self.result: GenerationResult | None = None
        self.events_s: list[float] = []
        self._silence_s = silence_s
        self._received: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._grpc = triton_grpc
        self._url = url
        self._inputs = encode_request({"prompt": prompt, **(fields or {})})
        if result_as != "bytes":
            self._inputs.append(text_input("RESULT_AS", result_as))
        self._client = triton_grpc.InferenceServerClient(url)
        self._ended = False

    def __enter__(self) -> "ClipStream":
        """Send the request."""
        self._began = time.monotonic()
        self._client.start_stream(lambda result, error: self._received.put((result, error)))
        # Of a connection that failed at once the first read tells why.
        with suppress(self._grpc.InferenceServerException):
            self._client.async_stream_infer(
                STREAM_MODEL,
                [self._filled(tensor) for tensor in self._inputs],
                request_id=self.request_id,
                enable_empty_final_response=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the stream; a job that has not ended is cancelled by that."""
        self._client.stop_stream(cancel_requests=not self._ended)
        self._client.close()

    def __iter__(self) -> Iterator[dict[str, object]]:
        """Events in order, the last one is `result`.

        Raises:
            H3ClientError: the job failed or was refused, or the server fell silent.
        """
        while not self._ended:
            response = self._next()
            final = response.get_response().parameters["triton_final_response"].bool_param
            spoken = response.as_numpy("EVENT")
            if spoken is not None:
                self.events_s.append(time.monotonic() - self._began)
                event = json_object(spoken, "EVENT")
                if event["event"] == "result":
                    self.result = self._result_of(response)
                    self._ended = True
                yield event
            elif final:
                raise H3ClientError(INTERNAL, "the stream ended without a result")

    def _next(self) -> Any:
        try:
            result, error = self._received.get(timeout=self._silence_s)
        except queue.Empty:
            message = f"no event from {self._url} for {self._silence_s:g} s; its stream model died"
            raise H3ClientError(CONNECTION, message) from None
        if error is not None:
            self._ended = True
            raise self._told(error)
        return result

    def _told(self, error: Any) -> H3ClientError:
        """What ended the stream: only the connection's own errors have a status."""
        text = str(error.message() or error)
        status = str(error.status() or "").removeprefix("StatusCode.")
        if status == UNAVAILABLE:
            return no_server(self._url, "gRPC", text)
        return server_error(status, text) if status else stream_error(text)

    def _result_of(self, response: Any) -> GenerationResult:
        clips = response.as_numpy("MP4")
        return GenerationResult(
            mp4=[] if clips is None else [bytes(clip) for clip in clips.reshape(-1)],
            metadata=json_object(response.as_numpy("METADATA"), "METADATA"),
            request_id=self.request_id,
            seconds=time.monotonic() - self._began,
        )

    def _filled(self, tensor: InputTensor) -> Any:
        filled = self._grpc.InferInput(tensor.name, list(tensor.values.shape), tensor.datatype)
        filled.set_data_from_numpy(np.asarray(tensor.values))
        return filled


def stream_error(text: str) -> H3ClientError:
    """The error of a stream's last response, with the status of its kind."""
    match = _KIND_AND_MESSAGE.fullmatch(text.strip())
    if match is None:
        return server_error(INTERNAL, text)
    status = STATUS_OF_KIND.get(match["kind"], INTERNAL)
    return H3ClientError(status, clean_message(match["message"]), kind=match["kind"])
