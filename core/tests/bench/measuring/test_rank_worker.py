import os

import pytest
import torch

from longca_bench.measuring.rank_worker import Marks, WatchedKernel
from longca_builtin.naive import Naive


class Looks(Naive):
    """Notes what is marked while it computes."""

    def __init__(self, marks, seen):
        super().__init__()
        self.marks, self.seen = marks, seen

    def forward(self, q, *arguments, **buffers):
        self.seen.append(self.marks.read())
        if q.isnan().any():
            raise ValueError
        return super().forward(q, *arguments, **buffers)

    def backward(self, *arguments, **buffers):
        self.seen.append(self.marks.read())
        return super().backward(*arguments, **buffers)


@pytest.fixture
def watched(setup):
    """A watched right kernel, one call of each direction through it, and the marks that it saw."""
    case, seen, fd = setup(), [], os.memfd_create("marks")
    os.ftruncate(fd, 4096)
    marks = Marks(fd)
    kernel, x = WatchedKernel(Looks(Marks(fd), seen), marks, torch.device("cpu")), case.inputs
    os.close(fd)
    plan = kernel.plan(case.problem)
    out, lse = case.kernel.forward(x.q, x.k, x.v, case.plan)

    def calls(q=x.q):
        return (*kernel.forward(q, x.k, x.v, plan), *kernel.backward(x.dout, q, x.k, x.v, out, lse, plan))

    return kernel, calls, (out, lse), seen, marks


def test_calls_are_marked_and_passed_on(watched):
    _, calls, (out, _), seen, marks = watched
    assert torch.equal(calls()[0], out)
    assert seen == ["forward", "backward"]
    assert marks.read() == ""


def test_the_mark_of_a_call_that_raised_stays(watched):
    _, calls, (out, _), _, marks = watched
    with pytest.raises(ValueError):
        calls(torch.full_like(out, torch.nan))
    assert marks.read() == "forward"


def test_the_device_is_waited_for_before_and_after_a_call(watched):
    kernel, calls, _, seen, marks = watched
    with kernel.waiting(lambda: seen.append(f"synchronized in {marks.read()!r}")):
        calls()
    around = [["synchronized in ''", name, f"synchronized in {name!r}"] for name in ("forward", "backward")]
    assert seen == [*around[0], *around[1]]
    calls()
    assert len(seen) == 8


def test_calls_are_kept_and_can_be_made_again(watched):
    kernel, calls, (out, lse), seen, _ = watched
    with kernel.kept() as kept:
        calls()
    assert len(kept) == 2
    again = kept[0]()
    assert torch.equal(again[0], out)
    assert torch.equal(again[1], lse)
    assert seen == ["forward", "backward", "forward"], "calls that are made again are marked too"


def test_silent_calls_compute_nothing(watched):
    kernel, calls, (out, lse), seen, _ = watched
    with kernel.silent():
        silent = calls()
    assert [x.shape for x in silent[:2]] == [out.shape, lse.shape]
    assert not any(x.any() for x in silent)
    assert not seen
