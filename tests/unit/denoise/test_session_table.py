import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from minimax_h3.core.errors import CapacityError, InvalidRequestError, UnknownSessionError
from minimax_h3.denoise.session_table import Latents, SessionTable


class FakeSession:
    """Counts what is asked of it."""

    def __init__(self, num_forwards: int = 3) -> None:
        self.num_forwards = num_forwards
        self.steps_done = 0
        self.latents_asked = 0
        self.active = 0
        self.overlapped = False

    def step(self, index: int) -> None:
        self.active += 1
        self.overlapped |= self.active > 1
        if index != self.steps_done:
            self.active -= 1
            raise InvalidRequestError(f"STEP: {index}")
        time.sleep(0.001)
        self.steps_done += 1
        self.active -= 1

    def latents(self) -> Latents:
        self.latents_asked += 1
        return np.zeros((24, 1, 2, 2), np.float32), np.zeros((2, 32, 1), np.float32)


class Clock:
    """Seconds that stand still until told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> Iterator[SessionTable]:
    table = SessionTable(lease_s=10.0, clock=clock)
    yield table
    table.close()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds a preparation until set; opened at the end, so that no worker is left behind."""
    event = threading.Event()
    yield event
    event.set()


def held(gate: threading.Event, session: FakeSession | None = None) -> Callable[[], FakeSession]:
    def prepare() -> FakeSession:
        assert gate.wait(10)
        return session or FakeSession()

    return prepare


def step_until_ready(table: SessionTable, session_id: str, index: int = 0) -> None:
    deadline = time.monotonic() + 10
    while not table.step(session_id, index):
        assert time.monotonic() < deadline


def test_a_session_from_start_to_end(table: SessionTable) -> None:
    session = FakeSession()
    table.start("a", lambda: session)
    for index in range(3):
        step_until_ready(table, "a", index)
    assert len(table) == 1
    latents = table.end("a", want_latents=True)
    assert latents is not None
    assert latents[0].shape == (24, 1, 2, 2)
    assert (len(table), table.started, table.ended, table.dropped) == (0, 1, 1, 0)
    with pytest.raises(UnknownSessionError):
        table.step("a", 3)


def test_start_returns_at_once_and_prepares_in_one_other_thread(
    table: SessionTable, gate: threading.Event
) -> None:
    threads: list[int] = []

    def prepare() -> FakeSession:
        threads.append(threading.get_ident())
        return held(gate)()

    began = time.monotonic()
    for name in "abc":
        table.start(name, prepare)
    assert time.monotonic() - began < 1.0
    gate.set()
    for name in "abc":
        step_until_ready(table, name)
    assert len(threads) == 3
    assert len(set(threads)) == 1
    assert threading.get_ident() not in threads


def test_an_unready_step_answers_after_a_short_wait(
    table: SessionTable, gate: threading.Event
) -> None:
    session = FakeSession()
    table.start("a", held(gate, session))
    began = time.monotonic()
    assert table.step("a", 0) is False
    assert 0.015 <= time.monotonic() - began < 1.0
    assert session.steps_done == 0
    gate.set()
    step_until_ready(table, "a")
    assert session.steps_done == 1


def test_the_wait_is_a_parameter(gate: threading.Event) -> None:
    table = SessionTable(lease_s=10.0, wait_s=0.2)
    table.start("a", held(gate))
    began = time.monotonic()
    assert not table.step("a", 0)
    assert time.monotonic() - began >= 0.19
    gate.set()
    table.close()


def test_steps_of_ready_sessions_run_beside_a_preparation(
    table: SessionTable, gate: threading.Event
) -> None:
    table.start("ready", FakeSession)
    step_until_ready(table, "ready")
    table.start("slow", held(gate))
    assert table.step("ready", 1)
    assert not table.step("slow", 0)


def test_a_failed_preparation_is_raised_by_every_step_and_by_end(table: SessionTable) -> None:
    def prepare() -> FakeSession:
        raise CapacityError("no memory for the tables")

    table.start("a", prepare)
    for _ in range(2):
        with pytest.raises(CapacityError, match="no memory"):
            step_until_ready(table, "a")
    assert len(table) == 1
    with pytest.raises(CapacityError, match="no memory"):
        table.end("a", want_latents=True)
    assert len(table) == 0
    table.start("b", FakeSession)  # the worker lives on
    step_until_ready(table, "b")


def test_a_failed_preparation_is_freed_in_silence_when_nobody_wants_latents(
    table: SessionTable,
) -> None:
    def prepare() -> FakeSession:
        raise TimeoutError("of something inside")

    table.start("a", prepare)
    with pytest.raises(TimeoutError, match="of something inside"):
        step_until_ready(table, "a")
    assert table.end("a", want_latents=False) is None
    assert (len(table), table.ended) == (0, 1)


def test_unknown_sessions(table: SessionTable) -> None:
    for call in (
        lambda: table.step("gone", 0),
        lambda: table.end("gone", want_latents=True),
        lambda: table.end("gone", want_latents=False),
    ):
        with pytest.raises(UnknownSessionError, match="'gone' is not held here"):
            call()
    assert table.ended == 0


def test_a_second_start_of_an_id_is_refused(table: SessionTable) -> None:
    session = FakeSession()
    table.start("a", lambda: session)
    with pytest.raises(InvalidRequestError, match="SESSION: 'a' is in use"):
        table.start("a", FakeSession)
    step_until_ready(table, "a")
    assert session.steps_done == 1
    assert table.started == 1


def test_a_wrong_step_is_passed_on_and_the_session_lives(table: SessionTable) -> None:
    table.start("a", FakeSession)
    step_until_ready(table, "a")
    with pytest.raises(InvalidRequestError, match="STEP: 0"):
        table.step("a", 0)
    assert table.step("a", 1)


def test_latents_before_the_last_step_name_done_and_needed(table: SessionTable) -> None:
    session = FakeSession(num_forwards=3)
    table.start("a", lambda: session)
    step_until_ready(table, "a")
    with pytest.raises(InvalidRequestError, match=r"has done 1 steps; legal: an end after 3"):
        table.end("a", want_latents=True)
    assert session.latents_asked == 0
    assert table.step("a", 1)  # it lives on


def test_latents_of_an_unready_session_are_refused(
    table: SessionTable, gate: threading.Event
) -> None:
    table.start("a", held(gate))
    with pytest.raises(InvalidRequestError, match="'a' is not prepared yet"):
        table.end("a", want_latents=True)
    assert len(table) == 1


def test_end_without_latents_computes_nothing(table: SessionTable) -> None:
    session = FakeSession()
    table.start("a", lambda: session)
    step_until_ready(table, "a")
    assert table.end("a", want_latents=False) is None
    assert (session.latents_asked, session.steps_done, len(table)) == (0, 1, 0)


def test_end_frees_an_unready_session_and_one_still_queued(
    table: SessionTable, gate: threading.Event
) -> None:
    prepared: list[str] = []

    def queued() -> FakeSession:
        prepared.append("queued")
        return FakeSession()

    table.start("running", held(gate))
    table.start("queued", queued)
    table.end("running", want_latents=False)
    table.end("queued", want_latents=False)
    assert len(table) == 0
    gate.set()
    table.start("next", FakeSession)
    step_until_ready(table, "next")
    assert prepared == []  # it was taken off the queue
    assert table.ended == 2


def test_a_step_that_waits_for_an_ended_session_learns_that_it_is_gone(
    gate: threading.Event,
) -> None:
    table = SessionTable(lease_s=10.0, wait_s=0.3)
    table.start("running", held(gate))
    table.start("queued", FakeSession)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(table.step, "queued", 0)
        time.sleep(0.05)
        table.end("queued", want_latents=False)
        with pytest.raises(UnknownSessionError):
            waiting.result(10)
    gate.set()
    table.close()


def test_sweep_drops_what_is_old_and_unknown(table: SessionTable, clock: Clock) -> None:
    for name in ("known", "lost"):
        table.start(name, FakeSession)
        step_until_ready(table, name)
    clock.now = 5.0
    table.start("young", FakeSession)
    step_until_ready(table, "young")
    clock.now = 11.0
    asked: list[str] = []

    def is_known(session_id: str) -> bool:
        asked.append(session_id)
        return session_id == "known"

    assert table.sweep(is_known) == ["lost"]
    assert asked == ["known", "lost"]  # the young one is not even asked about
    assert (len(table), table.dropped, table.ended) == (2, 1, 0)
    with pytest.raises(UnknownSessionError):
        table.step("lost", 1)
    assert table.step("known", 1)


def test_a_step_renews_the_lease(table: SessionTable, clock: Clock) -> None:
    table.start("a", FakeSession)
    step_until_ready(table, "a")
    clock.now = 9.0
    table.step("a", 1)
    clock.now = 18.0
    assert table.sweep(lambda _: False) == []
    clock.now = 19.5
    assert table.sweep(lambda _: False) == ["a"]


def test_a_session_touched_while_its_owner_is_asked_stays(
    table: SessionTable, clock: Clock
) -> None:
    table.start("a", FakeSession)
    step_until_ready(table, "a")
    clock.now = 11.0

    def is_known(session_id: str) -> bool:
        table.step(session_id, 1)
        return False

    assert table.sweep(is_known) == []
    assert len(table) == 1


def test_a_session_in_a_step_is_not_swept(clock: Clock, gate: threading.Event) -> None:
    """A full-size step may outlast the lease."""
    table = SessionTable(lease_s=10.0, clock=clock)
    inside = threading.Event()

    class Slow(FakeSession):
        def step(self, index: int) -> None:
            inside.set()
            assert gate.wait(10)
            self.steps_done += 1

    table.start("a", Slow)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(step_until_ready, table, "a")
        assert inside.wait(10)
        clock.now = 100.0
        assert table.sweep(lambda _: False) == []
        gate.set()
        running.result(10)
    table.close()


def test_an_unready_session_can_be_swept(
    table: SessionTable, clock: Clock, gate: threading.Event
) -> None:
    table.start("a", held(gate))
    clock.now = 11.0
    assert table.sweep(lambda _: False) == ["a"]
    assert len(table) == 0


def test_an_error_of_the_owner_check_drops_nothing(table: SessionTable, clock: Clock) -> None:
    table.start("a", FakeSession)
    clock.now = 11.0

    def is_known(session_id: str) -> bool:
        raise CapacityError("jobs is away")

    with pytest.raises(CapacityError):
        table.sweep(is_known)
    assert len(table) == 1


def test_many_threads_many_sessions(table: SessionTable) -> None:
    sessions = {str(i): FakeSession(num_forwards=5) for i in range(24)}

    def drive(name: str) -> Latents | None:
        table.start(name, lambda: sessions[name])
        for index in range(5):
            step_until_ready(table, name, index)
        return table.end(name, want_latents=True)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(drive, sessions))
    assert all(result is not None for result in results)
    assert (len(table), table.started, table.ended) == (0, 24, 24)
    assert all(session.latents_asked == 1 for session in sessions.values())


def test_steps_of_one_session_never_overlap(table: SessionTable) -> None:
    session = FakeSession(num_forwards=40)
    table.start("a", lambda: session)
    step_until_ready(table, "a")

    def try_all() -> None:
        for index in range(1, 40):
            with contextlib.suppress(InvalidRequestError):
                table.step("a", index)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(try_all) for _ in range(4)]:
            future.result(20)
    assert not session.overlapped
    assert session.steps_done <= 40
