"""The leader: it makes all ranks of a job measure a case, holds them to the deadline, and finds the rank to blame.

A rank that raises, runs out of memory or dies ends the case on all ranks. The other ranks would wait for it for ever,
and a process group with a rank that is out of step cannot be used again. The next case gets a new world.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch

from longca.errors import LongCAError
from longca_bench.measuring.messages import COMPUTING, PUSHING, Result, Setup
from longca_bench.measuring.status import Status
from longca_bench.ranks.board import Assignment, Board, BoardLostError, RankResult, open_store, serve_store
from longca_bench.ranks.job import Job
from longca_bench.ranks.member import Member
from longca_bench.suites.tasks import Task

__all__ = ["Leader", "blame", "leading"]

#: Seconds that workers may take to start and to find each other.
_START = 300.0
#: Seconds after a first failure in which a rank may still say that it died: others notice as soon as its member does.
_GRACE = 1.0
#: Seconds that members may take to end their workers.
_END = 20.0
_PAUSE = 0.02


class Leader:
    """Leads the ranks of a job."""

    def __init__(self, size: int, board: Board) -> None:
        self.size = size
        self._board = board
        self._number = self._world = 0
        self._answers: dict[int, RankResult] = {}

    def run(self, setup: Setup, task: Task, seconds: float) -> Result:
        """Makes all ranks measure a case. The deadline of some seconds starts when all workers are running."""
        self._answers = {}
        self._board.post(f"assignment/{self._number}", Assignment(setup, self._world, task))
        running = self._wait(self._all_ready, _START)
        done = running and self._wait(self._all_answered, seconds)
        results = [self._answers[rank].result for rank in range(self.size) if rank in self._answers]
        if done and not self._failed and results[0] is not None:
            result = results[0]
            self._world += any(each is not None and each.is_last for each in results)
        else:
            result = self._stop(seconds if running else _START)
            self._world += 1
        self._number += 1
        return result

    def dismiss(self) -> None:
        """Makes members end their workers and go, even in the middle of a case."""
        if len(self._answers) < self.size:
            self._board.post(f"stop/{self._number}", True)
        for number in (self._number, self._number + 1):  # in the middle of a case, its answer comes first
            self._board.post(f"assignment/{number}", None)
        self._wait(lambda: all(self._board.has(f"gone/{rank}") for rank in range(self.size)), _END)

    @property
    def _failed(self) -> bool:
        return any(map(_has_failed, self._answers.values()))

    def _wait(self, is_done: Callable[[], bool], seconds: float) -> bool:
        """Whether something is done within some seconds."""
        deadline = time.monotonic() + seconds
        while not is_done():
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE)
        return True

    def _all_ready(self) -> bool:
        ranks = range(self.size)
        return self._all_answered() or all(self._board.has(f"ready/{self._number}/{rank}") for rank in ranks)

    def _all_answered(self) -> bool:
        return self._all_said() or self._failed

    def _all_said(self) -> bool:
        for rank in range(self.size):
            if rank not in self._answers and self._board.has(name := f"answer/{self._number}/{rank}"):
                self._answers[rank] = self._board.read(name, RankResult)
        return len(self._answers) == self.size

    def _stop(self, seconds: float) -> Result:
        """Ends the case on all ranks."""
        if self._failed:
            self._wait(self._all_said, _GRACE)
        before = set(self._answers)
        self._board.post(f"stop/{self._number}", True)
        self._wait(self._all_said, _END)
        # Workers do not end at the same moment. A complaint about a worker that is gone by now is no failure.
        answers = {rank: each if rank in before else replace(each, result=None) for rank, each in self._answers.items()}
        return blame(answers, self.size, seconds)


@contextmanager
def leading(job: Job) -> Iterator[Leader]:
    """Leads a job, and supervises each rank that this process starts in a thread. At the end all members go."""
    job.enter()
    store = serve_store(job.host, job.port) if job.opens_store else None
    if store is not None:
        job = replace(job, port=store.port)
    if job.starts_all and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(job.threads)  # as the ranks have, which the run's environment says
    ranks = range(job.size) if job.starts_all else (job.rank,)
    members = [Member(job, Board(open_store(job.host, job.port)), rank) for rank in ranks]

    def follow(member: Member) -> None:
        with suppress(LongCAError):  # of the board: the leader or another member meets it too, and reports it
            member.follow()

    threads = [threading.Thread(target=follow, args=(member,), daemon=True) for member in members]
    for thread in threads:
        thread.start()
    leader = Leader(job.size, Board(open_store(job.host, job.port)))
    try:
        yield leader
    finally:
        with suppress(BoardLostError):  # nobody is left to be dismissed
            leader.dismiss()
        for thread, member in zip(threads, members, strict=True):
            thread.join(_END)
            member.end()
        del store  # nobody needs it any more


def _has_failed(answer: RankResult) -> bool:
    """Whether a rank failed by itself. Wrong and suspect results are the same on all ranks, and end no group."""
    return answer.result is not None and answer.result.status not in (Status.OK, Status.WRONG, Status.SUSPECT)


def blame(answers: Mapping[int, RankResult], size: int, seconds: float) -> Result:
    """The result of a case that some rank did not end well, from the results of ranks in the order of their coming.

    A rank that dies closes its connections, and the ranks that wait for it raise. So a crashed rank is to blame before
    all others, and else the first rank that raised. If time ran out, the rank inside a kernel or a push is to blame, or
    else the rank with the fewest phases.
    """
    failed = {rank: answer.result for rank, answer in answers.items() if answer.result and _has_failed(answer)}
    if not failed:
        return _late(answers, size, seconds)
    first = min(failed, key=lambda rank: failed[rank].status is not Status.CRASHED)
    message = f"rank {first} of {size}: {failed[first].message}, in phase {answers[first].phase!r}"
    also = sorted(set(failed) - {first})
    if also:
        message += f"; after it {_ranks(also)} failed"
    return Result(failed[first].status, message, {})


def _late(answers: Mapping[int, RankResult], size: int, seconds: float) -> Result:
    left = {rank: answer for rank, answer in answers.items() if answer.result is None}
    silent = sorted(set(range(size)) - set(answers))
    inside = [rank for rank, answer in left.items() if answer.phase.startswith((COMPUTING, PUSHING))]
    least = min((answer.phases for answer in left.values()), default=0)
    culprits = silent or sorted(inside or [rank for rank, answer in left.items() if answer.phases == least])
    phases = dict.fromkeys(left[rank].phase if rank in left else "unknown" for rank in culprits)
    verb = "is" if len(culprits) == 1 else "are"
    others = "" if len(culprits) == size else ", and the others wait"
    message = f"{_ranks(culprits)} of {size} {verb} still in phase {', '.join(map(repr, phases))} after {seconds:g} s"
    return Result(Status.TIMEOUT, f"{message}{others}; all were ended", {})


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
