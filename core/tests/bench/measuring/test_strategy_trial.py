"""The verification of a strategy's results, on the only rank of a world."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from longca.manifests import Direction, Layout
from longca_bench.measuring.arena import Arena
from longca_bench.measuring.commands import Answer
from longca_bench.measuring.kernel_trial import WrongResultError
from longca_bench.measuring.remote_kernel import Ran
from longca_bench.measuring.results import ContractError
from longca_bench.measuring.shares import SharedInputs, shares_of_all
from longca_bench.measuring.strategy_trial import StrategyTrial
from longca_bench.measuring.worker import Reply
from longca_bench.measuring.world import Instruments, World
from longca_bench.suites.tasks import Sharing, Task
from longca_bench.verification import reference
from longca_bench.verification.head_sample import HeadSample
from longca_builtin.naive import Naive

ROUGH = 0.9 * torch.finfo(torch.bfloat16).eps / 2


class Here:
    """A strategy in this process, on one rank. A function may spoil its results."""

    def __init__(self, made, spoil=lambda results, call: None, keeps=False):
        tokens = made.problem.mask.seqlen_q
        self.sharing = Sharing(Layout(((),), (((0, tokens),),)), (0,), True, False)
        self.kernel, self.plan, self.spoil, self.calls, self.keeps = Naive(), made.plan, spoil, [], keeps
        self.kept, self.loaded, self.timed, self.seconds = None, [], [], 1e-3

    def keep_busy(self, direction, tensors):
        self.loaded.append([x.clone() for x in tensors.values()])

    def call(self, direction, tensors, landing, *, mode="plain", keeps=False):
        self.calls.append((str(direction), str(mode)))
        given = [x.clone() for x in tensors.values()]
        if mode == "timed":
            self.timed.append(given)
        if keeps and self.keeps:
            self.kept = given
        if direction is Direction.BACKWARD and self.kept is not None:
            given[1:4] = self.kept
        method = self.kernel.forward if direction is Direction.FORWARD else self.kernel.backward
        for there, result in zip(landing.values(), method(*given, self.plan), strict=True):
            there.copy_(result)
        self.spoil(landing, self.calls)
        answer = Answer(kept=keeps and self.keeps, seconds=self.seconds, late=0.0, peak=None)
        return Ran(dict(landing), Reply(answer, self.seconds))


def trial(made, strategy, rough_lse=False):
    return StrategyTrial(
        strategy,
        made.problem,
        {"plan_seconds": 0.0},
        Task(None, "row_intervals", "contiguous", rough_lse),
        SharedInputs(made.inputs, shares_of_all(made.problem, 1), made.inputs, made.expected),
        Instruments(World(torch.device("cpu")), SimpleNamespace(arena=Arena(torch.device("cpu")))),
    )


@pytest.mark.parametrize("rough_lse", [False, True])
def test_a_rough_lse_passes_where_the_offers_say_so(setup, rough_lse):
    made = setup(dtype="bfloat16", direction="forward")
    found = trial(made, Here(made, lambda results, _: results["lse"].add_(ROUGH)), rough_lse).verify()
    assert {finding.tensor.split()[0]: finding.passed for finding in found.findings} == {"out": True, "lse": rough_lse}
    assert not trial(made, Here(made, lambda results, _: results["lse"].add_(3 * ROUGH)), rough_lse).verify().passed


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("keeps", [False, True])
def test_inputs_change_between_calls_and_results_with_them(setup, direction, keeps):
    made = setup(direction=direction)
    strategy = Here(made, keeps=keeps)
    one, given = trial(made, strategy), made.inputs.clone()
    assert one.verify().passed
    seen = set()
    for _ in range(4):
        _, results = one.sample()
        one.inspect(results)
        seen.add(tuple(one.inputs.v.flatten()[:8].tolist()))
    assert len(seen) > 1
    one.change()
    assert one.verify().passed
    assert torch.equal(made.inputs.v, given.v), "the trial has memory of its own"
    timed = strategy.calls.index((direction, "timed"))
    assert (("forward", "plain") in strategy.calls[timed:-2]) == (keeps and direction == "backward")


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_calls_that_load_a_device_have_the_inputs_of_the_call_before(setup, direction):
    """The strategy knows the results of these inputs already, so such calls are of no help in the timed one."""
    made = setup(direction=direction)
    strategy = Here(made)
    one = trial(made, strategy)
    assert one.verify().passed
    for _ in range(4):
        one.sample()
    for loaded, before, timed in zip(strategy.loaded[1:], strategy.timed[:-1], strategy.timed[1:], strict=True):
        assert all(map(torch.equal, loaded, before))
        assert not all(map(torch.equal, loaded, timed))


def test_a_trial_that_is_over_keeps_no_memory(setup):
    made = setup(direction="backward")
    gc.disable()
    try:
        one = trial(made, Here(made))
        assert one.verify().passed
        one.inspect(one.sample()[1])
        over = weakref.ref(one)
        del one
        assert over() is None, "a trial refers to itself, and keeps its tensors until the next collection of garbage"
    finally:
        gc.enable()


def test_a_backward_with_tensors_that_an_earlier_forward_kept_is_wrong(setup):
    made = setup(direction="backward")
    strategy = Here(made, keeps=True)
    one = trial(made, strategy)
    assert one.verify().passed
    old, strategy.keeps = strategy.kept, False
    strategy.spoil = lambda results, calls: setattr(strategy, "kept", old)
    with pytest.raises(WrongResultError, match=r"d. of a timed call on rank 0"):
        one.inspect(one.sample()[1])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda results: results["out"][:, 2].add_(1), "out of a timed call on rank 0: error"),
        (lambda results: results["out"][5].fill_(torch.nan), "out of a timed call on rank 0: not every element"),
        (lambda results: results["lse"].mul_(1.01), "lse of a timed call on rank 0"),
    ],
)
def test_a_wrong_timed_call_names_its_rank(setup, spoil, said):
    made = setup(direction="forward")
    one = trial(made, Here(made, lambda results, calls: spoil(results) if calls[-1][1] == "timed" else None))
    assert one.verify().passed
    with pytest.raises(WrongResultError, match=said):
        one.inspect(one.sample()[1])


@pytest.mark.parametrize("name", ["out", "lse"])
def test_a_head_without_a_reference_stays_as_it_was_verified(setup, monkeypatch, name):
    monkeypatch.setattr(reference, "sample_heads", lambda problem: HeadSample((0,), (0, 1)))
    made = setup(direction="forward")
    strategy = Here(made)
    one = trial(made, strategy)
    assert one.verify().passed
    assert one.check_counts().passed, "q = 0 is no checksum's"
    one.peaks()
    one.inspect(one.sample()[1])

    def spoil(results, calls):
        head = one._shard.change.place(name, 3)
        (results[name][head] if name == "lse" else results[name][:, head]).mul_(1.01)

    strategy.spoil = spoil
    with pytest.raises(WrongResultError, match=f"{name} of a timed call on rank 0: token .* not as it was"):
        one.inspect(one.sample()[1])


def test_a_timed_call_that_breaks_the_contract_names_its_rank(setup):
    made = setup(direction="forward")

    def spoil(results, calls):
        if calls[-1][1] == "timed":
            raise ContractError({"lse": "a list was returned instead of a tensor"})

    one = trial(made, Here(made, spoil))
    assert one.verify().passed
    with pytest.raises(WrongResultError, match="lse of a timed call on rank 0: a list was returned"):
        one.sample()


def test_a_strategy_that_changes_its_inputs_is_wrong(setup):
    made = setup(direction="forward")
    strategy = Here(made)
    one = trial(made, strategy)
    given = one.inputs.k.clone()
    strategy.spoil = lambda results, calls: one.inputs.k.neg_()
    assert "k on rank 0: the strategy changed this input" in "; ".join(map(str, one.verify().failures))
    assert torch.equal(one.inputs.k, given), "the input has its values back"
