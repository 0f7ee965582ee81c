"""Long work in the background: it waits, runs, says how far it is, and can be cancelled. Its result is a page."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from secrets import token_urlsafe
from threading import Event, Lock

from salience.core.executor import Report, watching
from salience.errors import SalienceError
from salience.server.limits import Limits
from salience.server.problems import Refused
from salience.server.schemas import JobState
from salience.server.work import Cancelled

WORKERS = 2
"""Jobs that run at once: one does not wait for another."""

Task = Callable[[Report], str]
"""Work that reports how far it is, and returns a page."""


@dataclass(slots=True)
class _Job:
    state: JobState
    stop: Event = field(default_factory=Event)
    page: str = ""


class Jobs:
    """The jobs of a server, in the order in which they were started."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self._lock = limits, Lock()
        self._jobs: dict[str, _Job] = {}
        self._threads: ThreadPoolExecutor | None = None

    def start(self, what: str, task: Task) -> JobState:
        """Start a job, or let it wait for its turn."""
        with self._lock:
            if len([j for j in self._jobs.values() if _open(j)]) >= self.limits.jobs:
                raise Refused(503, f"{self.limits.jobs} jobs wait already; cancel one, or try again later")
            self._forget()
            name = token_urlsafe(8)
            state = JobState(id=name, work=what, state="waiting", done=0, total=0, message="", result=None)
            job = self._jobs[name] = _Job(state)
            self._threads = self._threads or ThreadPoolExecutor(WORKERS, "salience jobs")
            self._threads.submit(self._run, job, task)
        return state

    def states(self) -> list[JobState]:
        """All jobs, the latest first."""
        with self._lock:
            return [job.state for job in reversed(self._jobs.values())]

    def state(self, name: str) -> JobState:
        return self._job(name).state

    def result(self, name: str) -> str:
        """The page that a job has made."""
        job = self._job(name)
        if job.state.state != "done":
            raise Refused(404, f"the job {name} has no result: it is {job.state.state}")
        return job.page

    def cancel(self, name: str) -> JobState:
        """End a job before its next pass."""
        job = self._job(name)
        job.stop.set()
        if job.state.state == "waiting":
            self._set(job, state="cancelled")
        return job.state

    def close(self) -> None:
        for job in self._jobs.values():
            job.stop.set()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._threads = None

    def _job(self, name: str) -> _Job:
        with self._lock:
            if name not in self._jobs:
                raise Refused(404, f"there is no job {name!r}; the latest {self.limits.jobs} are remembered")
            return self._jobs[name]

    def _forget(self) -> None:
        """Drop the oldest finished jobs."""
        finished = [name for name, job in self._jobs.items() if not _open(job)]
        for name in finished[: max(0, len(finished) - self.limits.jobs + 1)]:
            del self._jobs[name]

    def _set(self, job: _Job, **changes: object) -> None:
        job.state = job.state.model_copy(update=changes)

    def _run(self, job: _Job, task: Task) -> None:
        def watch(_done: int, _total: int) -> None:
            if job.stop.is_set():
                raise Cancelled

        def report(done: int, total: int) -> None:
            watch(done, total)
            self._set(job, done=done, total=total)

        try:
            with watching(watch):
                watch(0, 0)
                self._set(job, state="running")
                job.page = task(report)
            self._set(job, state="done", result=f"/job?id={job.state.id}")
        except Cancelled:
            self._set(job, state="cancelled")
        except SalienceError as error:
            self._set(job, state="failed", message=str(error))
        except Exception as error:
            self._set(job, state="failed", message=f"unexpected {type(error).__name__}: {error}")


def _open(job: _Job) -> bool:
    return job.state.state in ("waiting", "running")
