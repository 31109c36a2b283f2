"""Which of a kernel's offers its plans of steps are by, and that a ring of one process is right with them."""

import pytest

from longca import masks, registry
from longca.kernels.base import Plan, fill
from longca.manifests import Backward, Device, KernelManifest, Offer, Problem, resolve_manifest
from longca.manifests.resolve import step_problems
from longca_builtin.naive import Naive
from longca_cp.step_plans import plan_chunks, plan_steps

SEQLEN, RANKS = 101, 3


def manifest(*backwards):
    common = {"form": "dense", "dtypes": ("float64",), "cpu": True, "mask_heads": "query", "metadata": "O(S²)"}
    offers = tuple(Offer(**common, unequal_lengths=True, backward=backward) for backward in backwards)
    about = {"name": "toy", "title": "Toy", "upstream": "-", "license": "MIT", "family": "toy"}
    return KernelManifest(**about, implementation="toy:Toy", offers=offers)


class Toy(Naive):
    """Takes the first offer of its manifest that covers a problem. An `own` backward computes its lse again."""

    def __init__(self, *backwards):
        self.manifest = manifest(*backwards)

    def plan(self, problem):
        offer = resolve_manifest(self.manifest, problem).check().offer
        return Plan(problem, offer.form, offer.backward)

    def backward(self, dout, q, k, v, out, lse, plan, *, dq=None, dk=None, dv=None):
        if plan.backend is Backward.OWN:
            out, lse = self.forward(q, k, v, plan)
        grads = super().backward(dout, q, k, v, out, lse, plan)
        return tuple(fill(buffer, grad) for buffer, grad in zip((dq, dk, dv), grads, strict=True))


def problem(mask, **about):
    sizes = {"heads_q": 4, "heads_kv": 2, "head_dim": 8, "dtype": "float64"}
    return Problem(mask=mask, device=Device("cpu"), direction="backward", **{**sizes, **about})


@pytest.mark.parametrize("backwards", [("own", "external"), ("external", "own"), ("external",)])
@pytest.mark.parametrize("placement", ["contiguous", "zigzag"])
def test_merged_steps_are_planned_by_an_offer_that_composes(backwards, placement):
    asked = problem(masks.build("causal", 101))
    kernel = Toy(*backwards)
    layout = registry().layout("ring_p2p", asked, {"ring": 3}, placement)
    for rank, steps in enumerate(step_problems(asked, layout)):
        shown = sum(step is not None for step in steps)
        wanted = backwards[0] if shown == 1 else "external"
        plans = [plan for plan in plan_steps(asked, layout, rank, kernel) if plan is not None]
        assert [plan.backend for plan in plans] == [wanted] * shown


@pytest.mark.parametrize("mask_heads", [1, 2, 4])
def test_chunks_of_heads_merge_nothing(mask_heads):
    """They are apart, so that a backward which takes only its own lse does."""
    mask = masks.build("uniform_block_sparse", 64, block=16, kept=0.5, heads=mask_heads, seed=0)
    asked = problem(mask)
    layout = registry().layout("ulysses", asked, {"ulysses": 1})
    assert resolve_manifest(manifest("own"), asked, layout)
    plans = plan_chunks(asked, layout, 0, Toy("own"), 2)
    assert [plan.problem.heads_q for plan in plans] == [2, 2]
    assert [plan.backend for plan in plans] == ["own", "own"]
    heads = [mask.dense().reshape(mask_heads, 64, 64)[n * mask_heads // 2] for n in range(2)]
    for plan, shown in zip(plans, heads, strict=True):
        assert (plan.problem.mask.dense().reshape(-1, 64, 64)[0] == shown).all()
