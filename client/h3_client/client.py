"""`H3Client`: generate clips on a Triton server that holds the `minimax_h3` ensemble.

with H3Client("127.0.0.1:8001") as client:
    result = client.generate("a red circle on a blue ground", width=128, height=128, seed=7)
    Path("circle.mp4").write_bytes(result.mp4[0])
"""

import json
import time
import uuid
from types import TracebackType
from typing import Literal, TypeAlias

from h3_client.errors import CANCELLED, INTERNAL, INVALID_ARGUMENT, H3ClientError
from h3_client.fields import encode_request, text_input
from h3_client.results import GenerationResult, json_object
from h3_client.transport import GrpcTransport, HttpTransport, Transport

Protocol: TypeAlias = Literal["grpc", "http"]

__all__ = ["GenerationResult", "H3Client", "H3ClientError"]

ENSEMBLE, JOBS, RESULTS = "minimax_h3", "jobs", "results"
CANCEL_POLL_S = 0.05
DEFAULT_URLS: dict[Protocol, str] = {"grpc": "127.0.0.1:8001", "http": "127.0.0.1:8000"}
ACTIVE_STATES = ("queued", "waiting", "running")
JOBS_TIMEOUT_S = 5.0  # `jobs` answers in milliseconds; without an answer it is gone


class H3Client:
    """A connection to one server; a call blocks until its answer, other threads may call meanwhile.

    Args:
        url: host:port of the protocol, without a scheme; the protocol's usual local port if None.
        protocol: `grpc` or `http`.
        transport: used instead of a connection of our own, for tests and unusual networks.

    The first call of a client fails within 5 s, naming the URL, when no server answers there.
    After that a call waits as long as the job takes unless it is given a limit.
    """

    def __init__(
        self,
        url: str | None = None,
        protocol: Protocol = "grpc",
        transport: Transport | None = None,
    ) -> None:
        self.protocol = protocol
        self._checked = False
        if transport is None:
            address = url or DEFAULT_URLS[protocol]
            transport = GrpcTransport(address) if protocol == "grpc" else HttpTransport(address)
        self._transport = transport

    def __enter__(self) -> "H3Client":
        """The client itself; leaving the block closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    @property
    def url(self) -> str:
        """The address this client speaks to."""
        return self._transport.url

    def generate(
        self,
        prompt: str,
        *,
        frames: bool = False,
        audio: bool = False,
        request_id: str | None = None,
        timeout_s: float | None = None,
        **fields: object,
    ) -> GenerationResult:
        """Make the clips of one request and wait for them.

        Args:
            prompt: what to make.
            frames: also return the pictures as an array; sets the field `return_frames`.
            audio: also return the waveform as an array.
            request_id: alias for `job` and `cancel` from another thread; a fresh one if None.
            timeout_s: give up waiting after this long; the job itself goes on, see `cancel`.
            fields: further request fields by name (`width`, `seed`, ...); None means absent. A
                name without a tensor of its own travels in OPTIONS. `keyframes` and `references`
                take files: bytes, a `Path`, or the text `file:NAME` for a file at the server.

        Raises:
            H3ClientError: with the server's status and message.
        """
        asked = {"prompt": prompt, **({"return_frames": True} if frames else {}), **fields}
        inputs = encode_request(asked)
        outputs = ["MP4", "METADATA"]
        outputs += ["FRAMES"] if asked.get("return_frames") else []
        outputs += ["AUDIO"] if audio else []
        alias = request_id or uuid.uuid4().hex
        self._check_server()
        began = time.monotonic()
        try:
            arrays = self._transport.infer(ENSEMBLE, inputs, outputs, alias, timeout_s)
        except H3ClientError as error:
            raise self._told_apart(error, alias) from error
        seconds = time.monotonic() - began
        missing = [name for name in outputs if name not in arrays]
        if missing:
            raise H3ClientError(INTERNAL, f"the server's answer lacks {', '.join(missing)}")
        if "FRAMES" in outputs and not arrays["FRAMES"].size:
            raise H3ClientError(INTERNAL, "FRAMES was asked for and is empty")
        return GenerationResult(
            mp4=[bytes(clip) for clip in arrays["MP4"].reshape(-1)],
            metadata=json_object(arrays["METADATA"], "METADATA"),
            request_id=alias,
            seconds=seconds,
            frames=arrays.get("FRAMES"),
            audio=arrays.get("AUDIO"),
        )

    def job(self, job_id_or_alias: str) -> dict[str, object]:
        """State and progress of one job, or `{"unknown": True}`."""
        return self._jobs({"op": "get", "id": job_id_or_alias})

    def cancel(self, job_id_or_alias: str, wait_s: float = 0.0) -> dict[str, object]:
        """Ask for a job to stop at its next step; says whether it was there to be stopped.

        Args:
            job_id_or_alias: whose it is.
            wait_s: wait this long for the job's end; the answer's `state` is the last one seen.
        """
        deadline = time.monotonic() + wait_s
        answer = self._jobs({"op": "cancel", "id": job_id_or_alias})
        while answer.get("state") in ACTIVE_STATES and time.monotonic() < deadline:
            time.sleep(CANCEL_POLL_S)
            answer["state"] = self.job(job_id_or_alias).get("state")
        return answer

    def result(self, job_id_or_alias: str) -> GenerationResult:
        """The files of a finished job once more, while the server keeps them.

        Raises:
            H3ClientError: NOT_FOUND when it does not, or not any more.
        """
        self._check_server()
        began = time.monotonic()
        inputs = [text_input("JOB", job_id_or_alias)]
        arrays = self._transport.infer(RESULTS, inputs, ["MP4", "METADATA"], "", None)
        return GenerationResult(
            mp4=[bytes(clip) for clip in arrays["MP4"].reshape(-1)],
            metadata=json_object(arrays["METADATA"], "METADATA"),
            request_id=job_id_or_alias,
            seconds=time.monotonic() - began,
        )

    def jobs(self) -> list[dict[str, object]]:
        """All jobs that the server still remembers, oldest first."""
        listed = self._jobs({"op": "list"}).get("jobs")
        if not isinstance(listed, list):
            raise H3ClientError(INTERNAL, "the server's answer lacks a list of jobs")
        return listed

    def ping(self) -> dict[str, object]:
        """A cheap real inference: requests are answered, not only ports open."""
        return self._jobs({"op": "ping"})

    def ready(self) -> bool:
        """Whether the server takes requests now; False also when none answers."""
        try:
            return self._transport.is_ready(ENSEMBLE)
        except H3ClientError:
            return False

    def _jobs(self, operation: dict[str, object]) -> dict[str, object]:
        self._check_server()
        inputs = [text_input("OP", json.dumps(operation))]
        arrays = self._transport.infer(JOBS, inputs, ["ANSWER"], "", JOBS_TIMEOUT_S)
        if "ANSWER" not in arrays:
            raise H3ClientError(INTERNAL, "the server's answer lacks ANSWER")
        return json_object(arrays["ANSWER"], "ANSWER")

    def _check_server(self) -> None:
        """Find out once, with a short limit, whether there is a server at all."""
        if not self._checked:
            self._transport.is_live()
            self._checked = True

    def _told_apart(self, error: H3ClientError, alias: str) -> H3ClientError:
        """Over HTTP a cancelled job and a wrong request are both code 400; `jobs` knows which."""
        if self.protocol != "http" or error.status != INVALID_ARGUMENT:
            return error
        try:
            cancelled = self.job(alias).get("state") == "cancelled"
        except H3ClientError:
            return error
        return H3ClientError(CANCELLED, error.message) if cancelled else error
