import pytest

from longca_bench.measuring.messages import Result
from longca_bench.measuring.status import Status
from longca_bench.ranks.board import RankResult
from longca_bench.ranks.leader import blame


def answer(status, phase="verify", phases=5, message=""):
    return RankResult(None if status == "stopped" else Result(Status(status), message, {}), phase, phases)


@pytest.mark.parametrize(
    ("answers", "status", "said"),
    [
        # The one that died, though another one's connection broke first.
        ({0: answer("error", message="closed"), 2: answer("crashed"), 1: answer("stopped")}, "crashed", "rank 2 of 3"),
        ({0: answer("error"), 2: answer("crashed"), 1: answer("stopped")}, "crashed", "after it rank 0 failed"),
        # The first that raised, though others raised then.
        ({1: answer("oom"), 0: answer("error"), 2: answer("error")}, "oom", "after it ranks 0, 2 failed"),
        ({0: answer("ok"), 1: answer("error", message="Boom"), 2: answer("stopped")}, "error", "rank 1 of 3: Boom"),
        # The one in a kernel or a push; else those that have come least far; else those of which nothing is known.
        (
            {0: answer("stopped"), 1: answer("stopped", "kernel forward", 6), 2: answer("stopped")},
            "timeout",
            "rank 1 of 3 is still in phase 'kernel forward' after 9 s, and the others wait",
        ),
        (
            {0: answer("stopped", phases=5), 1: answer("stopped", phases=5), 2: answer("stopped", "push", 6)},
            "timeout",
            "rank 2 of 3 is still in phase 'push' after 9 s, and the others wait",
        ),
        (
            {0: answer("stopped", "plan", 2), 1: answer("stopped"), 2: answer("stopped", "plan", 2)},
            "timeout",
            "ranks 0, 2 of 3 are still in phase 'plan' after 9 s, and the others wait",
        ),
        (dict.fromkeys(range(3), answer("stopped", "time")), "timeout", "ranks 0, 1, 2 of 3 are still in phase 'time'"),
        ({0: answer("stopped"), 1: answer("stopped")}, "timeout", "rank 2 of 3 is still in phase 'unknown'"),
    ],
)
def test_blame(answers, status, said):
    outcome = blame(answers, 3, 9.0)
    assert (outcome.status, said in outcome.message) == (status, True), outcome.message
    assert not outcome.fields
