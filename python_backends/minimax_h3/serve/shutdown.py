"""Ending the jobs of a server before it is stopped."""

import time
from collections.abc import Callable

from minimax_h3.serve.server_api import ServerApi, ServerApiError

POLL_S = 0.1
CANCEL_S = 5.0  # a cancelled job stops at its next step


def end_jobs(
    api: ServerApi,
    grace_s: float,
    hurry: Callable[[], bool],
    announce: Callable[[str], None],
) -> bool:
    """Admit nothing more, let jobs finish, cancel those that are left after `grace_s` seconds.

    Args:
        api: of the running server.
        grace_s: seconds that jobs get.
        hurry: asked between two looks; true ends the waiting at once.
        announce: is told what is waited for.

    Returns:
        Whether no job and no session was left.
    """
    try:
        active = _left(api, {"op": "drain"})
        if active:
            announce(f"stopping: {active} jobs get up to {grace_s:g} s to finish")
        if _wait(api, grace_s, hurry):
            return True
        announce(f"stopping: {_left(api, {'op': 'drain', 'cancel': True})} jobs are cancelled")
        return _wait(api, CANCEL_S, hurry)
    except ServerApiError as error:
        announce(f"stopping without ending the jobs: {error}")
        return False


def _wait(api: ServerApi, seconds: float, hurry: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while _left(api, {"op": "drain"}):
        if hurry() or time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _left(api: ServerApi, operation: dict[str, object]) -> int:
    answer = api.jobs(operation)
    counts = [answer.get(name) for name in ("active", "sessions")]
    return max((count for count in counts if isinstance(count, int)), default=0)
