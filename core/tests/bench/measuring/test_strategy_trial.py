"""The verification of a strategy's results, on the only rank of a world."""

from types import SimpleNamespace

import pytest
import torch

from longca.manifests import Layout
from longca_bench.measuring.instruments import Instruments
from longca_bench.measuring.shared_inputs import SharedInputs
from longca_bench.measuring.shares import shares
from longca_bench.measuring.strategy_trial import StrategyTrial
from longca_bench.measuring.world import World
from longca_bench.suites.tasks import Task
from longca_builtin.naive import Naive

ROUGH = 0.9 * torch.finfo(torch.bfloat16).eps / 2


def trial(made, rough_lse, strategy=None):
    tokens = made.problem.mask.seqlen_q
    return StrategyTrial(
        task=Task(None, "row_intervals", "contiguous"),
        problem=made.problem,
        strategy=strategy,
        plan=None,
        kernel=None,
        layout=Layout(((),), (((0, tokens),),)),
        places=(0,),
        shared=SharedInputs(made.inputs, shares(made.problem, 1), made.inputs, made.expected),
        rough_lse=rough_lse,
        instruments=Instruments(World(torch.device("cpu")), None, None),
    )


@pytest.mark.parametrize("rough_lse", [False, True])
def test_a_rough_lse_passes_where_the_offers_say_so(setup, rough_lse):
    made = setup(dtype="bfloat16", direction="forward")
    out, lse = Naive().forward(made.inputs.q, made.inputs.k, made.inputs.v, made.plan)
    found = trial(made, rough_lse).check({"out": out, "lse": lse + ROUGH})
    assert {finding.tensor: finding.passed for finding in found.findings} == {"out": True, "lse": rough_lse}
    assert not trial(made, rough_lse).check({"out": out, "lse": lse + 3 * ROUGH}).passed


def test_it_is_as_rough_on_other_inputs(setup):
    made = setup(dtype="bfloat16", direction="forward")

    def forward(q, k, v, plan, kept=None):
        out, lse = Naive().forward(q, k, v, made.plan)
        return out, lse + ROUGH

    again, v = trial(made, True, SimpleNamespace(forward=forward)), made.inputs.v.clone()
    assert again.verify().passed
    again.change()
    assert again.verify().passed
    assert torch.equal(again.inputs.v, -v)
    assert torch.equal(made.inputs.v, v), "the trial has memory of its own"
