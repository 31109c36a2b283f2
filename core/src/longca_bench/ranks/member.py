"""Member: the process of a job that supervises one rank's worker, and does with it what the leader says."""

from __future__ import annotations

import signal

from longca_bench.measuring.messages import Outcome
from longca_bench.measuring.pool import Worker
from longca_bench.ranks.board import Board, answer, assignment, gone, ready, stop
from longca_bench.ranks.job import Job
from longca_bench.ranks.messages import Answer, Assignment, RankSetup
from longca_bench.ranks.store import open_store

__all__ = ["Member", "follow"]

_LISTEN = 0.05  # seconds between two looks at whether to stop
_MODULE = "longca_bench.ranks.worker"


class Member:
    """The supervisor of one rank.

    Args:
        job: Its place in the job.
        board: What the job's processes leave for each other.
    """

    def __init__(self, job: Job, board: Board) -> None:
        self._job, self._board = job, board
        self._worker: Worker | None = None
        self._world = -1
        self._phase, self._phases = "", 0

    def follow(self) -> None:
        """Does one assignment after another, until there is none; its worker ends with it."""
        number, rank = 0, self._job.rank
        try:
            while (told := self._board.read(assignment(number))) is not None:
                outcome = self._do(number, told)
                self._board.post(answer(number, rank), Answer(outcome, self._phase, self._phases))
                number += 1
        finally:
            self.end()
            self._board.post(gone(rank), True)

    def end(self) -> None:
        """Ends the worker, if there is one."""
        if self._worker is not None:
            self._worker.kill()

    def _do(self, number: int, told: Assignment) -> Outcome:
        self._phase, self._phases = "start", 0
        worker = self._worker
        if worker is None or self._world != told.world or not worker.is_running:
            worker = self._started(told)
            if (lost := self._listen(worker, number, until="ready")) is not None:
                return lost
        self._board.post(ready(number, self._job.rank), True)
        worker.give(told.task)
        outcome = self._listen(worker, number)
        assert outcome is not None
        return outcome

    def _started(self, told: Assignment) -> Worker:
        """A worker for another world; the one before is ended."""
        self.end()
        job = self._job
        setup = RankSetup(told.setup, told.world, job.rank, job.size, job.local_rank, job.host, job.port)
        self._worker, self._world = Worker(setup, module=_MODULE), told.world
        self._worker.launch()
        return self._worker

    def _listen(self, worker: Worker, number: int, until: str | None = None) -> Outcome | None:
        """What comes of it; None as soon as the worker is in a phase that was waited for."""
        while True:
            said = worker.hear(_LISTEN)
            if isinstance(said, Outcome):
                return said
            if said is not None:
                self._phase, self._phases = said.name, self._phases + 1
                if said.name == until:
                    return None
            elif self._board.has(stop(number)):
                worker.kill()
                return Outcome("stopped", "", {})


def follow(job: Job) -> None:
    """Supervises one rank of a job that another process leads, until that has nothing more to do."""
    job.end_with_launcher()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the leader's to handle, and it tells everyone
    Member(job, Board(open_store(job.host, job.port))).follow()
