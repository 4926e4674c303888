"""`h3 serve` as a whole: a server, its supervisor, and an end in good order."""

import time
from collections import deque
from collections.abc import Callable

from minimax_h3.core.errors import H3Error
from minimax_h3.serve.healing import Healer, HealingError
from minimax_h3.serve.progress_watch import Patience
from minimax_h3.serve.server_api import ServerApiError
from minimax_h3.serve.server_process import ServerProcess
from minimax_h3.serve.settings import ServeSettings
from minimax_h3.serve.shutdown import end_jobs
from minimax_h3.serve.supervisor import WATCH_S, Supervisor

MAX_RESTARTS = 3  # within RESTARTS_S; a server that dies more often needs a person
RESTARTS_S = 600.0


class ServerLostError(H3Error):
    """The server process itself has ended while it was to serve."""

    kind = "server_lost"


class Service:
    """Serves until it is asked to stop.

    Args:
        settings: what to start.
        announce: is told each line of progress.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        settings: ServeSettings,
        announce: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._announce = announce
        self._clock = clock
        self._restarts: deque[float] = deque()
        self.server = ServerProcess(settings, announce)

    def run(self) -> None:
        """Start, watch, and stop in good order.

        Raises:
            ServerStartError: the server did not become ready.
            ServerStoppedError: it was asked to stop before that.
            ServerLostError: the server died more often than is worth another try.
        """
        with self.server as server:
            supervisor = self._ready()
            while not server.stop_requested.wait(WATCH_S):
                trouble = self._watch(supervisor)
                # A second signal ends the server under a reload, which is no reason to start it.
                if trouble is not None and not server.stop_requested.is_set():
                    self._restart(trouble)
                    supervisor = self._ready()
            self._announce("stopping")
            grace_s = server.launch.settings.grace_s
            end_jobs(server.api, grace_s, server.kill_requested.is_set, self._announce)

    def _ready(self) -> Supervisor:
        server, settings = self.server, self.server.launch.settings
        self._announce(
            f"ready: HTTP http://{server.http_url} gRPC {server.grpc_url} "
            f"metrics http://{server.metrics_url}/metrics facts {server.launch.facts_file}"
        )
        healer = Healer(server.api, server.pid, settings.ready_timeout_s, self._announce)
        patience = Patience(settings.hang_timeout_s, settings.silence_timeout_s)
        return Supervisor(server.api, server.pid, healer, patience, self._announce)

    def _watch(self, supervisor: Supervisor) -> H3Error | None:
        """One look; what is returned is beyond healing."""
        status = self.server.poll()
        if status is not None:
            reasons = "".join(f"\n  {line}" for line in self.server.reasons())
            log = self.server.launch.log_file
            return ServerLostError(f"tritonserver exited with {status}, log {log}{reasons}")
        try:
            supervisor.tick()
        except HealingError as error:
            return error
        except ServerApiError as error:
            self._announce(f"{error}; looking again")
        return None

    def _restart(self, error: H3Error) -> None:
        now = self._clock()
        while self._restarts and now - self._restarts[0] > RESTARTS_S:
            self._restarts.popleft()
        if len(self._restarts) == MAX_RESTARTS:
            text = f"started {MAX_RESTARTS} times again, and still: {error}"
            raise ServerLostError(text) from error
        self._restarts.append(now)
        self._announce(f"{error}")
        self._announce("the server is started again")
        self.server.restart()
