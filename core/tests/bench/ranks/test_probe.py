import torch

from longca.builtin.naive import Naive
from longca_bench.ranks.probe import Probe


def probed(setup):
    """A probe of a right kernel, and one call of each direction through it."""
    case = setup()
    probe, x = Probe(Naive()), case.inputs
    plan = probe.plan(case.problem)
    out, lse = case.kernel.forward(x.q, x.k, x.v, case.plan)

    def calls():
        return (*probe.forward(x.q, x.k, x.v, plan), *probe.backward(x.dout, x.q, x.k, x.v, out, lse, plan))

    return probe, calls, (out, lse)


def test_what_is_timed_is_the_kernel_itself(setup):
    probe, calls, (out, _) = probed(setup)
    assert probe.forward.__func__ is Naive.forward
    assert torch.equal(calls()[0], out)


def test_calls_are_told(setup):
    probe, calls, _ = probed(setup)
    told = []
    with probe.told(told.append, lambda: told.append("synchronized")):
        calls()
    assert told == ["kernel forward", "synchronized", "", "kernel backward", "synchronized", ""]
    calls()
    assert len(told) == 6


def test_calls_are_kept_and_can_be_made_again(setup):
    probe, calls, (out, lse) = probed(setup)
    with probe.kept() as kept:
        calls()
    assert len(kept) == 2
    again = kept[0]()
    assert torch.equal(again[0], out)
    assert torch.equal(again[1], lse)


def test_silent_calls_compute_nothing(setup):
    probe, calls, (out, lse) = probed(setup)
    with probe.silent():
        silent = calls()
    assert [x.shape for x in silent[:2]] == [out.shape, lse.shape]
    assert not any(x.any() for x in silent)
