"""Many sessions behind start, step and end; safe to call from several threads.

Preparation takes long and runs beside the steps of other sessions, in one worker thread: a step of
a session that is not ready says so at once. A session lives until its `end`, or until its lease
runs out and nobody knows its id any more.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from minimax_h3.core.errors import InvalidRequestError, UnknownSessionError

Latents: TypeAlias = tuple[NDArray[np.float32], NDArray[np.float32]]

DEFAULT_WAIT_S = 0.02
"""How long a step waits for a session that is almost ready."""

_log = logging.getLogger(__name__)


class StepSession(Protocol):
    """What the table needs of a session, see `DenoiseSession`."""

    @property
    def num_forwards(self) -> int:
        """Steps of the whole session."""
        ...

    @property
    def steps_done(self) -> int:
        """Steps that were run."""
        ...

    def step(self, index: int) -> None:
        """Run one step."""
        ...

    def latents(self) -> Latents:
        """The result."""
        ...


@dataclass(slots=True)
class _Entry:
    """A session on its way or ready; `lock` keeps its steps one after another."""

    future: "Future[StepSession]"
    touched: float
    users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class SessionTable:
    """Sessions by id.

    Args:
        lease_s: seconds after which an untouched session may be dropped by `sweep`.
        wait_s: most seconds that a step waits for a session to become ready.
        clock: seconds, never going back.

    Attributes:
        started, ended, dropped: sessions so far; ended by `end`, dropped by `sweep`.
    """

    def __init__(
        self,
        lease_s: float,
        wait_s: float = DEFAULT_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lease_s = lease_s
        self._wait_s = wait_s
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        # One OpenMP thread: a second team beside the steps' own would oversubscribe the cores, and
        # OpenMP then puts every thread to sleep between two operations.
        self._worker = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="prepare-session",
            initializer=torch.set_num_threads,
            initargs=(1,),
        )
        self.started = 0
        self.ended = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._entries)

    def ids(self) -> list[str]:
        """Ids of all sessions that are held."""
        with self._lock:
            return list(self._entries)

    def start(self, session_id: str, prepare: Callable[[], StepSession]) -> None:
        """Queue a session's preparation and return at once.

        Args:
            session_id: not in use.
            prepare: builds the session; runs in the worker thread.

        Raises:
            InvalidRequestError: the id is in use.
        """
        with self._lock:
            if session_id in self._entries:
                raise InvalidRequestError(f"SESSION: {session_id!r} is in use; legal: a new id")
            self._entries[session_id] = _Entry(self._worker.submit(prepare), self._clock())
            self.started += 1

    def step(self, session_id: str, index: int) -> bool:
        """Run one step.

        Returns:
            False when the session is not ready yet; nothing was computed then.

        Raises:
            UnknownSessionError: no such session.
            InvalidRequestError: not the session's next step.
            H3Error: whatever its preparation failed with.
        """
        entry = self._enter(session_id)
        try:
            if not entry.future.done():
                wait((entry.future,), self._wait_s)
            if not entry.future.done():
                return False
            session = self._prepared(session_id, entry)
            with entry.lock:
                session.step(index)
            return True
        finally:
            self._leave(entry)

    def end(self, session_id: str, want_latents: bool) -> Latents | None:
        """Give a session up.

        Args:
            session_id: of a session, ready or not.
            want_latents: False computes nothing and frees the session in any case. True frees it
                unless steps are missing.

        Returns:
            Video [24, T, h, w] and audio [2, 32, A] if they were wanted.

        Raises:
            UnknownSessionError: no such session.
            InvalidRequestError: latents were asked for before all steps were done.
            H3Error: latents were asked for and the preparation had failed, or they are not finite.
        """
        if not want_latents:
            self._free(session_id)
            return None
        entry = self._enter(session_id)
        try:
            session = self._finished(session_id, entry)
        finally:
            self._leave(entry)
        self._free(session_id)
        return session.latents()

    def sweep(self, is_known: Callable[[str], bool]) -> list[str]:
        """Drop sessions that outlived their lease and that nobody knows.

        Args:
            is_known: whether somebody still owns an id; asked outside all locks.

        Returns:
            Ids of the dropped sessions.
        """
        stale = [session_id for session_id, entry in self._snapshot() if self._is_stale(entry)]
        dropped = []
        for session_id in stale:
            if is_known(session_id):
                continue
            with self._lock:
                entry = self._entries.get(session_id)
                if entry is None or not self._is_stale(entry):
                    continue
                del self._entries[session_id]
                self.dropped += 1
            entry.future.cancel()
            dropped.append(session_id)
            _log.warning("dropped session %s: untouched and unknown", session_id)
        return dropped

    def close(self) -> None:
        """Forget all sessions and stop the worker; a preparation that runs is left to finish."""
        with self._lock:
            self._entries.clear()
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _finished(self, session_id: str, entry: _Entry) -> StepSession:
        if not entry.future.done():
            raise InvalidRequestError(
                f"SESSION: {session_id!r} is not prepared yet; legal: an end after all its steps"
            )
        if not entry.future.cancelled() and entry.future.exception() is not None:
            self._free(session_id)
        session = self._prepared(session_id, entry)
        with entry.lock:
            done, needed = session.steps_done, session.num_forwards
        if done < needed:
            raise InvalidRequestError(
                f"SESSION: {session_id!r} has done {done} steps; legal: an end after {needed}"
            )
        return session

    @staticmethod
    def _prepared(session_id: str, entry: _Entry) -> StepSession:
        if entry.future.cancelled():  # it was ended while this call waited for it
            raise UnknownSessionError(f"SESSION: {session_id!r} is not held here")
        return entry.future.result()

    def _snapshot(self) -> list[tuple[str, _Entry]]:
        with self._lock:
            return list(self._entries.items())

    def _is_stale(self, entry: _Entry) -> bool:
        return not entry.users and self._clock() - entry.touched > self._lease_s

    def _enter(self, session_id: str) -> _Entry:
        with self._lock:
            entry = self._entries.get(session_id)
            if entry is None:
                raise UnknownSessionError(f"SESSION: {session_id!r} is not held here")
            entry.users += 1
            return entry

    def _leave(self, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            entry.touched = self._clock()

    def _free(self, session_id: str) -> None:
        with self._lock:
            entry = self._entries.pop(session_id, None)
            if entry is None:
                raise UnknownSessionError(f"SESSION: {session_id!r} is not held here")
            self.ended += 1
        entry.future.cancel()
