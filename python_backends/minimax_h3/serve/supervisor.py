"""Watches a running server: dead processes, hung models, and what to do about them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from minimax_h3.serve.healing import Healer
from minimax_h3.serve.progress_watch import JobView, Patience, busy_models, overdue
from minimax_h3.serve.retirement import Retirement
from minimax_h3.serve.server_api import ServerApi, ServerApiError
from minimax_h3.serve.stubs import find_stubs, is_alive, kill_all, wait_gone

WATCH_S = 1.0
PROBE_EVERY_S = 10.0
PROBE_TIMEOUT_S = 5.0
TRIES = 2  # questions in a row without an answer before a process counts as hung
JOBS = "jobs"
UNFINISHED = ("waiting", "running")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A model that needs new processes, and why."""

    model: str
    reason: str


class Supervisor:
    """One running server under watch; `tick` is called once a second.

    Args:
        api: of the server.
        server_pid: process id of tritonserver.
        healer: reloads models.
        patience: with busy models.
        announce: is told what is found and done.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        api: ServerApi,
        server_pid: int,
        healer: Healer,
        patience: Patience,
        announce: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._healer = healer
        self._patience = patience
        self._announce = announce
        self._clock = clock
        self._stubs: dict[str, list[psutil.Process]] = find_stubs(server_pid)
        self._probe_at = clock() + PROBE_EVERY_S
        self._retirement = Retirement(clock)

    @property
    def stubs(self) -> Mapping[str, list[psutil.Process]]:
        """The processes under watch, by model."""
        return self._stubs

    def tick(self) -> None:
        """Look once, and heal what is dead or hangs.

        Raises:
            HealingError: a model could not be healed; start the server again.
            ServerApiError: the server did not take an order; look again.
        """
        verdicts = self._dead() or self._hung()
        # `jobs` first, because the others' jobs are ended through it.
        for verdict in sorted(verdicts, key=lambda verdict: verdict.model != JOBS):
            self._announce(f"{verdict.model}: {verdict.reason}; it gets a new process")
            before = self._stubs.get(verdict.model, [])
            healed = self._healer.heal(verdict.model, before)
            self._stubs[verdict.model] = list(healed.stubs)
            self._retirement.add(before)
            self._announce(f"{verdict.model}: serves again after {healed.seconds:.1f} s")

    def _dead(self) -> list[Verdict]:
        """Models one of whose processes has ended."""
        found = []
        for model, stubs in self._stubs.items():
            gone = [stub.pid for stub in stubs if not is_alive(stub)]
            if gone:
                found.append(Verdict(model, f"process {', '.join(map(str, gone))} died"))
        return found

    def _hung(self) -> list[Verdict]:
        """Models that live but do not answer."""
        jobs = self._unfinished_jobs()
        if jobs is None:
            return self._condemn(JOBS, "does not answer")
        retired = self._retirement.look(jobs)
        if retired:
            self._announce(f"ended {len(retired)} old processes that no job needs any more")
        late = overdue(jobs, self._patience)
        if late:
            return self._judge(late[0])
        if self._clock() < self._probe_at:
            return []
        self._probe_at = self._clock() + PROBE_EVERY_S
        for model in self._stubs.keys() - busy_models(jobs) - {JOBS}:
            if not self._api.probe(model, PROBE_TIMEOUT_S) and self._is_idle_and_mute(model):
                return self._condemn(model, "is idle and does not answer")
        return []

    def _is_idle_and_mute(self, model: str) -> bool:
        """Ask again, unless a job came in between: then its progress will tell."""
        jobs = self._unfinished_jobs() or []
        return model not in busy_models(jobs) and not self._api.probe(model, PROBE_TIMEOUT_S)

    def _judge(self, job: JobView) -> list[Verdict]:
        """Which of the models that owe a word about an overdue job hangs."""
        silence = f"is silent about job {job.job_id} for {job.silent_s:.0f} s"
        for model in sorted(job.models):
            if not self._api.probe(model, PROBE_TIMEOUT_S):
                return self._condemn(model, f"{silence} and does not answer")
        # All of them answer, so the process that holds the job is an instance beside the one asked.
        for model, stubs in self._stubs.items():
            if job.models & {model} and any(stub.pid == job.loop_pid for stub in stubs):
                return self._condemn(model, silence, job.loop_pid)
        self._announce(f"nobody works on job {job.job_id} any more; it is ended")
        operation = {
            "op": "fail",
            "job_id": job.job_id,
            "stage": job.stage,
            "kind": "worker_lost",
            "message": f"nobody spoke of this job for {job.silent_s:.0f} s",
        }
        self._api.jobs(operation)
        return []

    def _condemn(self, model: str, reason: str, pid: int | None = None) -> list[Verdict]:
        """Hung processes of a model, or one of them, are ended: from here on they are dead."""
        hung = [stub for stub in self._stubs.get(model, []) if pid in (None, stub.pid)]
        kill_all(hung)
        wait_gone(hung, PROBE_TIMEOUT_S)
        return [Verdict(model, reason)]

    def _unfinished_jobs(self) -> list[JobView] | None:
        """The jobs that are not at their end; None when `jobs` does not answer."""
        for _ in range(TRIES):
            try:
                if not self._api.jobs({"op": "ping"}, PROBE_TIMEOUT_S).get("active"):
                    return []
                listed = self._api.jobs({"op": "list"}, PROBE_TIMEOUT_S).get("jobs")
            except ServerApiError as error:
                self._announce(f"jobs: {error}")
                continue
            entries = listed if isinstance(listed, list) else []
            return [JobView.of(entry) for entry in entries if entry.get("state") in UNFINISHED]
        return None
