"""Members: a process of a job that supervises the process of one rank, as the leader directs."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import replace

from longca_bench.measuring.child_process import ChildProcess
from longca_bench.measuring.messages import Place, Result, from_json
from longca_bench.measuring.status import Status
from longca_bench.ranks.board import Assignment, Board, RankResult, answer, assignment, gone, open_store, ready, stop
from longca_bench.ranks.job import Job

__all__ = ["Member", "follow"]

_MODULE = "longca_bench.ranks.rank_process"
_LISTEN = 0.05  # seconds between two looks for the leader's stop


class Member:
    """The supervisor of one rank."""

    def __init__(self, job: Job, board: Board) -> None:
        self._job, self._board = job, board
        self._process: ChildProcess | None = None
        self._world = -1
        self._phase, self._phases = "", 0

    def follow(self) -> None:
        """Does one assignment after another until the last, and then ends the rank's process."""
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
        """Ends the rank's process and its worker, if they run."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _do(self, number: int, told: Assignment) -> Result | None:
        self._phase, self._phases = "start", 0
        if self._process is None or self._world != told.world or not self._process.is_running:
            self._start(told)
            while self._phase != "ready":
                if not isinstance(said := self._listen(number), str):
                    return said
        self._give(told.task)
        while isinstance(said := self._listen(number), str):
            if said == "load":  # its worker runs, and the time of the plugin's code begins
                self._board.post(ready(number, self._job.rank), True)
        return said

    def _start(self, told: Assignment) -> None:
        """Starts a process for a new world, after the end of the one before."""
        self.end()
        job = self._job
        place = Place(told.world, job.rank, job.size, job.local_rank, job.host, job.port)
        self._process, self._world = ChildProcess(_MODULE, keeps_output=False), told.world
        self._give(replace(told.setup, place=place))

    def _give(self, message: object) -> None:
        """Sends the process a message. If the process is gone, the next `_listen` says so."""
        assert self._process is not None, "a rank's process is started before it is given anything"
        with suppress(OSError):
            self._process.connection.send(message)

    def _listen(self, number: int) -> Result | str | None:
        """The name of the rank's next phase, or its result. None if the leader stopped the case."""
        while (process := self._process) is not None:
            try:
                if process.connection.poll(_LISTEN):
                    said: str | Result = from_json(process.connection.recv_bytes(), str | Result)
                    if isinstance(said, Result):
                        if said.is_last:
                            self.end()
                        return said
                    self._phase, self._phases = said, self._phases + 1
                    return self._phase
            except (EOFError, OSError):
                how = process.how_it_ended()
                self._process = None
                return Result(Status.CRASHED, f"the process of the rank {how}", {}, is_last=True)
            if self._board.has(stop(number)):
                self.end()
        return None


def follow(job: Job) -> None:
    """Supervises one rank of a job that another process leads, until the leader dismisses it."""
    job.enter()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the leader's to handle, and it tells everyone
    Member(job, Board(open_store(job.host, job.port))).follow()
