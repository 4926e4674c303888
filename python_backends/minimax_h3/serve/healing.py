"""Giving a model whose process died or hangs a new one, without two copies of its weights."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from minimax_h3.core.contracts import MODELS
from minimax_h3.core.errors import H3Error
from minimax_h3.serve.server_api import ServerApi, ServerApiError
from minimax_h3.serve.stubs import find_stubs, is_alive, kill_all, wait_gone

GONE_S = 10.0  # the kernel frees the memory of a killed process in far less
PROBES = 3


class HealingError(H3Error):
    """A model could not be given a new process; the server must be started again."""

    kind = "healing"


@dataclass(frozen=True, slots=True)
class Healed:
    """A model that serves again.

    Attributes:
        model: its name.
        stubs: the new processes.
        seconds: from the order to the first answer.
    """

    model: str
    stubs: tuple[psutil.Process, ...]
    seconds: float


class Healer:
    """Reloads models of one running server.

    Args:
        api: of that server.
        server_pid: process id of tritonserver.
        load_timeout_s: longest load of a model, weights included.
        announce: is told what happens.
    """

    def __init__(
        self,
        api: ServerApi,
        server_pid: int,
        load_timeout_s: float,
        announce: Callable[[str], None],
    ) -> None:
        self._api = api
        self._server_pid = server_pid
        self._load_timeout_s = load_timeout_s
        self._announce = announce

    def heal(self, model: str, watched: Iterable[psutil.Process]) -> Healed:
        """Give a model new processes.

        Of a model with weights every process is ended and gone before the new one starts. Of a
        model with several instances, which has no weights, those that live finish the jobs that
        they run: Triton keeps them for the requests in flight, `Retirement` ends them afterwards.

        Args:
            model: its name.
            watched: its processes, dead ones among them.

        Raises:
            HealingError: it does not serve afterwards.
        """
        began = time.monotonic()
        shared = MODELS[model].instances > 1
        before = list(watched)
        doomed = [stub for stub in before if not (shared and is_alive(stub))]
        kill_all(doomed)
        self._end_jobs_of(model, [stub.pid for stub in doomed])
        try:
            self._api.unload(model)
            old = {stub.pid for stub in [*before, *self._stubs(model)]}
            left = wait_gone(doomed, GONE_S)
            if left:
                raise HealingError(f"{model}: process {left[0].pid} does not end")
            self._api.load(model, self._load_timeout_s)
        except ServerApiError as error:
            raise HealingError(f"{model}: {error}") from error
        if not any(self._api.probe(model) for _ in range(PROBES)):
            raise HealingError(f"{model}: loaded again, but does not answer")
        self._tell_jobs({"op": "worker_back", "model": model})
        fresh = [stub for stub in self._stubs(model) if stub.pid not in old]
        return Healed(model, tuple(fresh), time.monotonic() - began)

    def _stubs(self, model: str) -> list[psutil.Process]:
        return find_stubs(self._server_pid).get(model, [])

    def _end_jobs_of(self, model: str, pids: list[int]) -> None:
        """Jobs of a dead worker end with an error instead of silence, and free their places."""
        if model == "jobs":
            return  # running jobs register with the new one by themselves
        answer = self._tell_jobs({"op": "worker_lost", "model": model, "pids": pids})
        ended = answer.get("ended")
        if isinstance(ended, list) and ended:
            self._announce(f"{model}: ended {', '.join(map(str, ended))}")

    def _tell_jobs(self, operation: dict[str, object]) -> dict[str, object]:
        try:
            return self._api.jobs(operation)
        except ServerApiError as error:
            self._announce(f"{operation['model']}: jobs was not told: {error}")
            return {}
