"""What is verified of a strategy's results, on the only rank of a world."""

from types import SimpleNamespace

import pytest
import torch

from longca.builtin.naive import Naive
from longca.manifests import Layout
from longca_bench.ranks.shares import shares
from longca_bench.ranks.subject import Subject

ROUGH = 0.9 * torch.finfo(torch.bfloat16).eps / 2


class OneRank:
    """A world of one, which needs no process group."""

    rank, size = 0, 1

    def everyone(self, value):
        return [value]

    def all_to_all(self, sent, sizes_out, sizes_in):
        return sent


def subject(made, rough_lse, strategy=None):
    tokens = made.problem.mask.seqlen_q
    return Subject(
        strategy=strategy,
        plan=None,
        probe=None,
        problem=made.problem,
        layout=Layout(((),), (((0, tokens),),)),
        places=(0,),
        inputs=made.inputs,
        shares=shares(made.problem, 1),
        expected=made.expected,
        rough_lse=rough_lse,
        world=OneRank(),
    )


@pytest.mark.parametrize("rough_lse", [False, True])
def test_a_rough_lse_passes_where_the_offers_say_so(setup, rough_lse):
    made = setup(dtype="bfloat16", direction="forward")
    out, lse = Naive().forward(made.inputs.q, made.inputs.k, made.inputs.v, made.plan)
    found = subject(made, rough_lse).check({"out": out, "lse": lse + ROUGH})
    assert {finding.tensor: finding.passed for finding in found.findings} == {"out": True, "lse": rough_lse}
    assert not subject(made, rough_lse).check({"out": out, "lse": lse + 3 * ROUGH}).passed


def test_it_is_as_rough_on_other_inputs(setup):
    made = setup(dtype="bfloat16", direction="forward")

    def forward(q, k, v, plan, kept=None):
        out, lse = Naive().forward(q, k, v, made.plan)
        return out, lse + ROUGH

    again = subject(made, True, SimpleNamespace(forward=forward)).negated()
    assert again.check(again.forward()[0]).passed
