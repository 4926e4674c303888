"""What the supervisor decides, with a server made of words."""

import subprocess
from collections.abc import Callable, Iterator

import psutil
import pytest

from minimax_h3.serve import supervisor as module
from minimax_h3.serve.healing import Healer, HealingError
from minimax_h3.serve.progress_watch import Patience
from minimax_h3.serve.server_api import ServerApiError
from minimax_h3.serve.stubs import is_alive, wait_gone
from minimax_h3.serve.supervisor import Supervisor

JOB = {
    "job_id": "j",
    "state": "running",
    "stage": "denoiser",
    "awaiting": ["denoiser"],
    "dit": "dit_fl2va",
    "stamp_age_s": 1.0,
    "expected_step_s": 5.0,
}


class Server:
    """Answers as it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.jobs_listed: list[dict] = []
        self.mute: set[str] = set()
        self.probed: list[str] = []
        self.operations: list[dict] = []
        self.orders: list[tuple[str, str]] = []
        self.load_error = ""

    def jobs(self, operation: dict, timeout_s: float = 0.0) -> dict:
        self.operations.append(operation)
        if "jobs" in self.mute:
            raise ServerApiError("no answer")
        if operation["op"] == "ping":
            return {"active": len(self.jobs_listed)}
        return {"jobs": self.jobs_listed, "ended": []}

    def probe(self, model: str, timeout_s: float = 0.0) -> bool:
        self.probed.append(model)
        return model not in self.mute

    def unload(self, model: str) -> None:
        self.orders.append(("unload", model))

    def load(self, model: str, timeout_s: float) -> None:
        if self.load_error:
            raise ServerApiError(self.load_error)
        self.orders.append(("load", model))
        self.mute.discard(model)


@pytest.fixture
def processes() -> Iterator[dict[str, list[psutil.Process]]]:
    """A process for every instance of some models."""
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(6)]
    one, two, three, four, *loops = (psutil.Process(child.pid) for child in children)
    yield {
        "jobs": [one],
        "dit_fl2va": [two],
        "text_encoder": [three],
        "muxer": [four],
        "denoiser": loops,
    }
    for child in children:
        child.kill()
        child.wait()


class Watch:
    def __init__(self, processes: dict, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.said, self.now = Server(), [], 0.0
        monkeypatch.setattr(module, "find_stubs", lambda pid: dict(processes))
        monkeypatch.setattr("minimax_h3.serve.healing.find_stubs", lambda pid: {})
        say: Callable[[str], None] = self.said.append
        healer = Healer(self.server, 1, 10.0, say)
        self.supervisor = Supervisor(
            self.server, 1, healer, Patience(60.0, 600.0), say, lambda: self.now
        )

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.supervisor.tick()


@pytest.fixture
def watch(processes: dict, monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(processes, monkeypatch)


def test_nothing_is_done_to_a_server_that_works(watch: Watch, processes: dict) -> None:
    for _ in range(30):
        watch.tick()
    assert watch.said == []
    assert watch.server.orders == []
    assert set(watch.server.probed) == processes.keys() - {"jobs"}


def test_a_dead_process_is_noticed_at_the_next_look(watch: Watch, processes: dict) -> None:
    (stub,) = processes["text_encoder"]
    stub.kill()
    wait_gone([stub], 5.0)
    watch.tick()
    assert watch.server.orders == [("unload", "text_encoder"), ("load", "text_encoder")]
    ops = [(entry["op"], entry.get("model")) for entry in watch.server.operations]
    lost, back = ("worker_lost", "text_encoder"), ("worker_back", "text_encoder")
    assert ops.index(lost) < ops.index(back)
    assert f"text_encoder: process {stub.pid} died; it gets a new process" in watch.said


def test_jobs_is_healed_before_the_others(watch: Watch, processes: dict) -> None:
    victims = [*processes["dit_fl2va"], *processes["jobs"]]
    for stub in victims:
        stub.kill()
    wait_gone(victims, 5.0)
    watch.tick()
    assert [model for _, model in watch.server.orders] == [
        *("jobs", "jobs", "dit_fl2va", "dit_fl2va")
    ]


def test_one_dead_loop_leaves_the_others_alive(watch: Watch, processes: dict) -> None:
    dead, other = processes["denoiser"]
    dead.kill()
    wait_gone([dead], 5.0)
    watch.tick()
    assert is_alive(other)
    lost = next(entry for entry in watch.server.operations if entry["op"] == "worker_lost")
    assert lost["pids"] == [dead.pid]


def test_old_loops_end_when_the_jobs_that_were_there_have_ended(
    watch: Watch, processes: dict
) -> None:
    dead, other = processes["denoiser"]
    watch.server.jobs_listed = [JOB]
    dead.kill()
    wait_gone([dead], 5.0)
    watch.tick()
    for _ in range(10):
        watch.tick()
    assert is_alive(other)
    watch.server.jobs_listed = [JOB | {"job_id": "later"}]  # bound to the new processes
    watch.tick()
    assert wait_gone([other], 5.0) == []
    assert watch.said[-1] == "ended 1 old processes that no job needs any more"
    assert watch.server.orders == [("unload", "denoiser"), ("load", "denoiser")]


def test_a_job_that_is_registered_late_keeps_the_old_loops(watch: Watch, processes: dict) -> None:
    dead, other = processes["denoiser"]
    dead.kill()
    wait_gone([dead], 5.0)
    watch.tick()
    watch.tick()
    watch.server.jobs_listed = [JOB]  # was on its way
    for _ in range(10):
        watch.tick()
    assert is_alive(other)


def test_what_an_earlier_death_left_is_not_taken_for_new(
    watch: Watch, processes: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its end would be one more death, and eight more processes."""
    dead, other = processes["denoiser"]
    (leftover,) = processes["muxer"]
    standing = [dead, other, leftover]
    monkeypatch.setattr(
        "minimax_h3.serve.healing.find_stubs", lambda pid: {"denoiser": list(standing)}
    )

    def load(model: str, timeout_s: float) -> None:
        standing.append(processes["dit_fl2va"][0])

    monkeypatch.setattr(watch.server, "load", load)
    healed = Healer(watch.server, 1, 10.0, watch.said.append).heal("denoiser", [dead, other])
    assert healed.stubs == (processes["dit_fl2va"][0],)


def test_an_idle_model_that_is_mute_twice_is_ended(watch: Watch, processes: dict) -> None:
    watch.server.mute.add("muxer")
    watch.tick(11.0)
    assert watch.server.probed.count("muxer") >= 2
    assert not is_alive(processes["muxer"][0])
    assert ("load", "muxer") in watch.server.orders


def test_a_busy_model_is_not_probed(watch: Watch) -> None:
    watch.server.jobs_listed = [JOB]
    watch.server.mute = {"dit_fl2va"}  # a probe would queue behind its step
    watch.tick(11.0)
    assert not {"dit_fl2va", "denoiser"} & set(watch.server.probed)
    assert watch.server.orders == []


def test_a_job_that_came_in_between_excuses_a_mute_model(watch: Watch) -> None:
    probe = watch.server.probe

    def arrives(model: str, timeout_s: float = 0.0) -> bool:
        if model == "text_encoder":
            watch.server.jobs_listed = [JOB | {"awaiting": ["text_encoder"], "dit": ""}]
        return probe(model)

    watch.server.probe = arrives
    watch.server.mute = {"text_encoder"}
    watch.tick(11.0)
    assert watch.server.orders == []


def test_of_an_overdue_job_the_mute_model_is_to_blame(watch: Watch, processes: dict) -> None:
    watch.server.jobs_listed = [JOB | {"stamp_age_s": 61.0}]
    watch.server.mute = {"dit_fl2va"}
    watch.tick()
    assert not is_alive(processes["dit_fl2va"][0])
    assert watch.server.orders == [("unload", "dit_fl2va"), ("load", "dit_fl2va")]
    assert "dit_fl2va: is silent about job j for 61 s and does not answer" in watch.said[0]


def test_if_all_answer_an_instance_of_the_loop_hangs(watch: Watch, processes: dict) -> None:
    hung, other = processes["denoiser"]
    watch.server.jobs_listed = [JOB | {"stamp_age_s": 61.0, "loop_pid": hung.pid}]
    watch.tick()
    assert ("load", "denoiser") in watch.server.orders
    assert not is_alive(hung)
    assert is_alive(other)
    assert is_alive(processes["dit_fl2va"][0])


def test_a_job_that_nobody_works_on_is_ended(watch: Watch) -> None:
    watch.server.jobs_listed = [
        JOB | {"stage": "muxer", "awaiting": ["muxer"], "dit": "", "stamp_age_s": 601.0}
    ]
    watch.tick()
    failed = next(entry for entry in watch.server.operations if entry["op"] == "fail")
    assert (failed["job_id"], failed["kind"]) == ("j", "worker_lost")
    assert watch.server.orders == []


def test_a_mute_jobs_model_is_healed(watch: Watch, processes: dict) -> None:
    watch.server.mute = {"jobs"}
    watch.tick()
    assert not is_alive(processes["jobs"][0])
    assert watch.server.orders == [("unload", "jobs"), ("load", "jobs")]


def test_a_model_that_cannot_be_loaded_is_beyond_healing(watch: Watch, processes: dict) -> None:
    watch.server.load_error = "no memory"
    processes["muxer"][0].kill()
    wait_gone(processes["muxer"], 5.0)
    with pytest.raises(HealingError, match="muxer: no memory"):
        watch.tick()
