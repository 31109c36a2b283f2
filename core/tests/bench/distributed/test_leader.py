"""A leader whose members are a thread each, and say what a test has them say."""

import threading
import time

from torch.distributed import HashStore

from longca.bench.distributed.board import Board, answer, assignment, gone, ready, stop
from longca.bench.distributed.leader import Leader
from longca.bench.distributed.messages import Answer
from longca.bench.messages import Outcome

STOPPED = Outcome("stopped", "", {})


class Late:
    """What is said when the stop has come, and not before."""

    def __init__(self, outcome=STOPPED):
        self.outcome = outcome


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
        while (told := board.read(assignment(number))) is not None:
            self.worlds[rank].append(told.world)
            board.post(ready(number, rank), True)
            outcome = said.pop(0)
            while isinstance(outcome, Late) and not board.has(stop(number)):
                time.sleep(0.01)
            outcome = outcome.outcome if isinstance(outcome, Late) else outcome
            board.post(answer(number, rank), Answer(outcome, "verify", 3))
            number += 1
        board.post(gone(rank), True)

    def end(self):
        self.leader.dismiss()
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()


def test_a_world_lives_while_all_goes_well():
    fine, wrong = Outcome("ok", "", {"median": 1.0}), Outcome("wrong", "dk", {})
    members = Members([fine, wrong, fine], [Outcome("ok", "", {}), wrong, fine])
    outcomes = [members.leader.run(None, None, 5.0) for _ in range(3)]
    members.end()
    assert [each.status for each in outcomes] == ["ok", "wrong", "ok"]
    assert outcomes[0].fields == {"median": 1.0}, "what rank 0 measured"
    assert members.worlds == {0: [0, 0, 0], 1: [0, 0, 0]}


def test_after_a_failure_there_is_another_world():
    fine, last = Outcome("ok", "", {}), Outcome("ok", "", {}, is_last=True)
    members = Members([Late(), fine, fine], [Outcome("oom", "no more", {}), last, fine])
    outcomes = [members.leader.run(None, None, 5.0) for _ in range(3)]
    members.end()
    assert [each.status for each in outcomes] == ["oom", "ok", "ok"]
    assert "rank 1 of 2: no more" in outcomes[0].message
    assert members.worlds == {0: [0, 1, 2], 1: [0, 1, 2]}


def test_what_is_said_after_the_stop_is_no_failure():
    closed = Late(Outcome("error", "connection closed", {}))
    members = Members([closed], [Late()])
    outcome = members.leader.run(None, None, 0.2)
    members.end()
    assert outcome.status == "timeout"
    assert "connection closed" not in outcome.message


def test_dismissed_in_the_midst_of_a_case():
    members = Members([Late()], [Late()])
    case = threading.Thread(target=members.leader.run, args=(None, None, 0.5))
    case.start()
    while not members.worlds[1]:
        time.sleep(0.01)
    members.end()
    case.join(10)
    assert members.worlds == {0: [0], 1: [0]}
