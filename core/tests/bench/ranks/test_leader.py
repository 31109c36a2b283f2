"""A leader whose members are a thread each, and say what a test has them say."""

import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any

import pytest
from torch.distributed import HashStore

from longca_bench.measuring.messages import Result
from longca_bench.measuring.status import Status
from longca_bench.ranks.board import Board, BoardLostError, RankResult, open_store
from longca_bench.ranks.job import Job
from longca_bench.ranks.leader import Leader, blame, leading
from longca_bench.ranks.member import Member


class Late:
    """A result that comes after the stop, and not before."""

    def __init__(self, result=None):
        self.result = result


class Members:
    """Two members, each with what it is to say of one assignment after another."""

    def __init__(self, *says):
        self.store, self.worlds = HashStore(), {0: [], 1: []}
        self.threads = [threading.Thread(target=self.follow, args=(r, list(said))) for r, said in enumerate(says)]
        for thread in self.threads:
            thread.start()
        self.leader = Leader(2, Board(self.store))

    def follow(self, rank, said):
        board, number = Board(self.store), 0
        while (told := board.read(f"assignment/{number}", Any)) is not None:
            self.worlds[rank].append(told["world"])
            board.post(f"ready/{number}/{rank}", True)
            result = said.pop(0)
            while isinstance(result, Late) and not board.has(f"stop/{number}"):
                time.sleep(0.01)
            result = result.result if isinstance(result, Late) else result
            board.post(f"answer/{number}/{rank}", RankResult(result, "verify", 3))
            number += 1
        board.post(f"gone/{rank}", True)

    def end(self):
        self.leader.dismiss()
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()


def test_a_world_lives_while_all_goes_well():
    fine, wrong = Result(Status.OK, "", {"median": 1.0}), Result(Status.WRONG, "dk", {})
    members = Members([fine, wrong, fine], [Result(Status.OK, "", {}), wrong, fine])
    outcomes = [members.leader.run(None, None, 5.0) for _ in range(3)]
    members.end()
    assert [each.status for each in outcomes] == ["ok", "wrong", "ok"]
    assert outcomes[0].fields == {"median": 1.0}, "what rank 0 measured"
    assert members.worlds == {0: [0, 0, 0], 1: [0, 0, 0]}


def test_after_a_failure_there_is_another_world():
    fine, last = Result(Status.OK, "", {}), Result(Status.OK, "", {}, is_last=True)
    members = Members([Late(), fine, fine], [Result(Status.OOM, "no more", {}), last, fine])
    outcomes = [members.leader.run(None, None, 5.0) for _ in range(3)]
    members.end()
    assert [each.status for each in outcomes] == ["oom", "ok", "ok"]
    assert "rank 1 of 2: no more" in outcomes[0].message
    assert members.worlds == {0: [0, 1, 2], 1: [0, 1, 2]}


def test_what_is_said_after_the_stop_is_no_failure():
    closed = Late(Result(Status.ERROR, "connection closed", {}))
    members = Members([closed], [Late()])
    outcome = members.leader.run(None, None, 0.2)
    members.end()
    assert outcome.status == "timeout"
    assert "connection closed" not in outcome.message


def test_dismissed_in_the_midst_of_a_case():
    members = Members([Late()], [Late()])
    case = threading.Thread(target=members.leader.run, args=(None, None, 5.0))
    case.start()
    while not all(members.worlds.values()):
        time.sleep(0.01)
    members.end()
    case.join(10)
    assert members.worlds == {0: [0], 1: [0]}


SERVER = """
from torch.distributed import TCPStore
store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
input()
"""


@pytest.fixture
def server():
    """A process that has opened a store, as a launcher does."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.port = int(process.stdout.readline())
    yield process
    process.kill()
    process.communicate()


def test_a_board_a_leader_and_a_member_whose_launcher_is_gone(server, monkeypatch):
    monkeypatch.setattr(Job, "enter", lambda job: None)
    board = Board(open_store("localhost", server.port))
    board.post("said", 1)
    assert board.read("said", int) == 1
    member = Member(Job(1, 2, 1, "localhost", server.port, False), Board(open_store("localhost", server.port)))

    def lead():
        with leading(Job(0, 1, 0, "localhost", server.port, opens_store=False)) as leader:
            server.kill()
            server.wait()
            leader.run(None, None, 5.0)

    with pytest.raises(BoardLostError):
        lead()
    with pytest.raises(BoardLostError):
        member.follow()
    for call in (partial(board.has, "said"), partial(board.read, "said", int), partial(board.post, "said", 2)):
        with pytest.raises(BoardLostError, match="--resume"):
            call()


def end(status, phase="verify", phases=5, message=""):
    return RankResult(None if status == "stopped" else Result(Status(status), message, {}), phase, phases)


@pytest.mark.parametrize(
    ("answers", "status", "said"),
    [
        # The one that died, though another one's connection broke first.
        (
            {0: end("error", message="closed"), 2: end("crashed"), 1: end("stopped")},
            "crashed",
            "rank 2 of 3",
        ),
        ({0: end("error"), 2: end("crashed"), 1: end("stopped")}, "crashed", "after it rank 0 failed"),
        # The first that raised, though others raised then.
        ({1: end("oom"), 0: end("error"), 2: end("error")}, "oom", "after it ranks 0, 2 failed"),
        ({0: end("ok"), 1: end("error", message="Boom"), 2: end("stopped")}, "error", "rank 1 of 3: Boom"),
        # The one in a kernel or a push; else those that have come least far; else those of which nothing is known.
        (
            {0: end("stopped"), 1: end("stopped", "kernel forward", 6), 2: end("stopped")},
            "timeout",
            "rank 1 of 3 is still in phase 'kernel forward' after 9 s, and the others wait",
        ),
        (
            {0: end("stopped", phases=5), 1: end("stopped", phases=5), 2: end("stopped", "push", 6)},
            "timeout",
            "rank 2 of 3 is still in phase 'push' after 9 s, and the others wait",
        ),
        (
            {0: end("stopped", "plan", 2), 1: end("stopped"), 2: end("stopped", "plan", 2)},
            "timeout",
            "ranks 0, 2 of 3 are still in phase 'plan' after 9 s, and the others wait",
        ),
        (
            dict.fromkeys(range(3), end("stopped", "time")),
            "timeout",
            "ranks 0, 1, 2 of 3 are still in phase 'time'",
        ),
        ({0: end("stopped"), 1: end("stopped")}, "timeout", "rank 2 of 3 is still in phase 'unknown'"),
    ],
)
def test_blame(answers, status, said):
    outcome = blame(answers, 3, 9.0)
    assert (outcome.status, said in outcome.message) == (status, True), outcome.message
    assert not outcome.fields
