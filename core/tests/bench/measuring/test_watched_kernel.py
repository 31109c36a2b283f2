import torch

from longca_bench.measuring.watched_kernel import WatchedKernel
from longca_builtin.naive import Naive


def watched(setup):
    """A watched right kernel, and one call of each direction through it."""
    case = setup()
    kernel, x = WatchedKernel(Naive()), case.inputs
    plan = kernel.plan(case.problem)
    out, lse = case.kernel.forward(x.q, x.k, x.v, case.plan)

    def calls():
        return (*kernel.forward(x.q, x.k, x.v, plan), *kernel.backward(x.dout, x.q, x.k, x.v, out, lse, plan))

    return kernel, calls, (out, lse)


def test_what_is_timed_is_the_kernel_itself(setup):
    kernel, calls, (out, _) = watched(setup)
    assert kernel.forward.__func__ is Naive.forward
    assert torch.equal(calls()[0], out)


def test_calls_are_told(setup):
    kernel, calls, _ = watched(setup)
    told = []
    with kernel.told(told.append, lambda: told.append("synchronized")):
        calls()
    assert told == ["kernel forward", "synchronized", "", "kernel backward", "synchronized", ""]
    calls()
    assert len(told) == 6


def test_calls_are_kept_and_can_be_made_again(setup):
    kernel, calls, (out, lse) = watched(setup)
    with kernel.kept() as kept:
        calls()
    assert len(kept) == 2
    again = kept[0]()
    assert torch.equal(again[0], out)
    assert torch.equal(again[1], lse)


def test_silent_calls_compute_nothing(setup):
    kernel, calls, (out, lse) = watched(setup)
    with kernel.silent():
        silent = calls()
    assert [x.shape for x in silent[:2]] == [out.shape, lse.shape]
    assert not any(x.any() for x in silent)
