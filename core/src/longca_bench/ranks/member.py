"""Members: a process of a job that supervises one rank's judge, as the leader directs."""

from __future__ import annotations

import signal
from dataclasses import replace

from longca_bench.measuring.messages import Order, Place, Result
from longca_bench.measuring.pool import Judge
from longca_bench.ranks.board import Board, answer, assignment, gone, ready, stop
from longca_bench.ranks.job import Job
from longca_bench.ranks.messages import Assignment, RankResult
from longca_bench.ranks.store import open_store

__all__ = ["Member", "follow"]

_LISTEN = 0.05  # seconds between two looks for the leader's stop


class Member:
    """The supervisor of one rank.

    Args:
        job: Its place in the job.
        board: The board of the job's processes.
    """

    def __init__(self, job: Job, board: Board) -> None:
        self._job, self._board = job, board
        self._judge: Judge | None = None
        self._world = -1
        self._phase, self._phases = "", 0

    def follow(self) -> None:
        """Does one assignment after another until the last, and then ends the judge."""
        number, rank = 0, self._job.rank
        try:
            while (told := self._board.read(assignment(number), Assignment | None)) is not None:
                result = self._do(number, told)
                self._board.post(answer(number, rank), RankResult(result, self._phase, self._phases))
                number += 1
        finally:
            self.end()
            self._board.post(gone(rank), True)

    def end(self) -> None:
        """Ends the judge, if there is one."""
        if self._judge is not None:
            self._judge.kill()

    def _do(self, number: int, told: Assignment) -> Result | None:
        self._phase, self._phases = "start", 0
        judge = self._judge
        if judge is None or self._world != told.world or not judge.is_running:
            judge = self._started(told)
            while self._phase != "ready":
                if not isinstance(said := self._listen(judge, number), str):
                    return said
        self._board.post(ready(number, self._job.rank), True)
        judge.give(Order(told.task))
        while isinstance(said := self._listen(judge, number), str):
            pass
        return said

    def _started(self, told: Assignment) -> Judge:
        """A judge for a new world, after the end of the one before."""
        self.end()
        job = self._job
        place = Place(told.world, job.rank, job.size, job.local_rank, job.host, job.port)
        self._judge, self._world = Judge(replace(told.setup, place=place)), told.world
        self._judge.launch()
        return self._judge

    def _listen(self, judge: Judge, number: int) -> Result | str | None:
        """The name of the judge's next phase, or its result. None if the leader stopped the case."""
        while True:
            said = judge.hear(_LISTEN)
            if isinstance(said, Result):
                return said
            if said is not None:
                self._phase, self._phases = said.name, self._phases + 1
                return self._phase
            if self._board.has(stop(number)):
                judge.kill()
                return None


def follow(job: Job) -> None:
    """Supervises one rank of a job that another process leads, until the leader dismisses it."""
    job.enter()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the leader's to handle, and it tells everyone
    Member(job, Board(open_store(job.host, job.port))).follow()
