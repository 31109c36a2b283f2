"""Members: the supervisor of the process of one rank, as the leader directs."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import replace

from longca_bench.measuring.child_process import ChildProcess
from longca_bench.measuring.messages import Place, Result, from_json
from longca_bench.measuring.status import Status
from longca_bench.ranks.board import Assignment, Board, RankResult, open_store
from longca_bench.ranks.job import Job

__all__ = ["Member", "follow"]

_MODULE = "longca_bench.ranks.rank_process"
_LISTEN = 0.05  # seconds between two looks for the leader's stop


class Member:
    """The supervisor of one rank: that of the job, or a rank that the job's process starts."""

    def __init__(self, job: Job, board: Board, rank: int | None = None) -> None:
        self._job, self._board, self._rank = job, board, job.rank if rank is None else rank
        self._process: ChildProcess | None = None
        self._world, self._phase, self._phases = -1, "", 0

    def follow(self) -> None:
        """Does one assignment after another until the last, and then ends the rank's process."""
        number = 0
        try:
            while (told := self._board.read(f"assignment/{number}", Assignment | None)) is not None:
                result = self._do(number, told)
                self._board.post(f"answer/{number}/{self._rank}", RankResult(result, self._phase, self._phases))
                number += 1
        finally:
            self.end()
            self._board.post(f"gone/{self._rank}", True)

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
                self._board.post(f"ready/{number}/{self._rank}", True)
        return said

    def _start(self, told: Assignment) -> None:
        """Starts a process for a new world, after the end of the one before."""
        self.end()
        job, rank = self._job, self._rank
        local_rank = rank if job.starts_all else job.local_rank
        self._process = ChildProcess(_MODULE, environment=job.variables(rank), keeps_output=False)
        self._world = told.world
        self._give(replace(told.setup, place=Place(told.world, rank, job.size, local_rank, job.host, job.port)))

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
                    return said
            except (EOFError, OSError):
                how = process.how_it_ended()
                self._process = None
                return Result(Status.CRASHED, f"the process of the rank {how}", {}, is_last=True)
            if self._board.has(f"stop/{number}"):
                self.end()
        return None


def follow(job: Job) -> None:
    """Supervises one rank of a job that another process leads, until the leader dismisses it."""
    job.enter()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the leader's to handle, and it tells everyone
    Member(job, Board(open_store(job.host, job.port))).follow()
