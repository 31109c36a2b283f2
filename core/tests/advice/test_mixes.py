"""Mixes in predictions: each step counts with the kernel that is fastest on it, if that is worth a mix."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from longca import Problem, masks
from longca_advice.asked import Asked
from longca_advice.costs import CostModel
from longca_advice.sharing import quickest
from longca_advice.strategies import rank_strategies, ways_of
from longca_advice.weighing import weigh

from ..fake_plugins import provides
from .crossed import CPU, RUN, STRATEGY, links
from .rows import row

#: Takes full masks alone, in both directions.
LIMITED = """
@hookimpl
def provide_kernel():
    return kernel("limited", offer("full", unequal_lengths=True, backward="external"))
"""
#: The first half of the queries sees all keys, the second half is causal. A rank of four has a quarter of the queries.
HALF = masks.SliceMask([masks.Slice(0, 2048, 0, 4096), masks.Slice(2048, 4096, 0, 4096, -4096, 0)], 4096, 4096)


@pytest.fixture
def asking(open_registry):
    """Makes a question of HALF, whose kernels are a plain one and one that is faster on full masks, by a factor."""

    def made(factor, training=False, mask=HALF):
        general = provides("plain").replace('"row_intervals",', '"row_intervals", backward="external",')
        known = open_registry(crossed=STRATEGY.format(schedule="crossed_strategy:schedule"), plain=general, few=LIMITED)
        rows = [
            row(pattern=name, seqlen=n, run=RUN, direction=direction)
            for name in ("full", "causal")
            for n in (512, 2048, 4096)
            for direction in ("forward", "backward")
        ]
        quicker = [one for one in rows if one.pattern == "full"]
        rows += [one.model_copy(update={"kernel": "limited", "seconds": factor * one.seconds}) for one in quicker]
        problem = Problem(mask=mask, heads_q=8, heads_kv=2, device=CPU)
        return Asked(problem, training, known, CostModel(rows), None, ("plain", "limited"))

    yield made
    sys.modules.pop("crossed_strategy", None)


def ways(asked):
    return list(ways_of(asked, 4, links(), ("crossed",)))[:1]


def test_a_kernel_takes_infinitely_long_where_it_does_not_go(asking):
    (way,) = ways(asking(0.5))
    by_rank = way.pairs.seconds(way.exact("limited", "forward", "forward"))[:, 0]
    assert np.isfinite(by_rank).tolist() == [True, True, False, False]


@pytest.mark.parametrize("training", [False, True])
def test_each_step_counts_with_its_fastest_kernel(asking, training):
    (way,) = ways(asking(0.5, training))
    directions = 2 if training else 1
    found = weigh(way, ("limited|plain",) * directions)
    alone = weigh(way, ("plain",) * directions)
    assert found.kernel == "limited|plain"
    assert found.steps == (("limited", 2), ("plain", 2))
    assert found.shared_out == "limited takes 2 of 4 steps, plain takes 2 of 4 steps"
    causal = way.pairs.seconds(way.exact("plain", "forward", "forward"))[3, 0] * (3 if training else 1)
    assert found.seconds == pytest.approx(causal, rel=0.05)
    assert found.seconds < 0.95 * alone.seconds
    assert found.interval[0] < found.seconds < found.interval[1]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("factor", "taken"), [(0.5, "plain|limited"), (0.98, "plain")])
def test_a_mix_is_taken_where_it_is_worth_it(asking, factor, taken, training):
    asked = asking(factor, training)
    assert quickest(asked, ways(asked))[0].kernel == taken
    best = rank_strategies(asked, 4, links(), ("crossed",)).choices[0]
    assert best.kernel == taken
    assert ("limited takes 2 of 4 steps, plain takes 2 of 4 steps" in best.proof.notes) == ("|" in taken)
    assert f"kernel='{taken}'" in best.call


def test_a_mix_of_which_one_kernel_is_fastest_everywhere_is_that_kernel(asking):
    (way,) = ways(asking(2.0))
    found = weigh(way, ("limited|plain",))
    assert (found.kernel, found.steps) == ("plain", ())


def test_a_named_mix_is_weighed_as_it_is_asked(asking):
    asked = asking(0.98)
    assert quickest(asked, ways(asked), "plain|limited")[0].kernel == "plain|limited"
    unknown = replace(asked, costs=CostModel([]))
    assert quickest(unknown, ways(unknown), "plain|limited") == []


def test_the_memory_of_a_mix_is_the_most_that_a_step_may_take(asking):
    asked = asking(0.5, training=True)
    (way,) = ways(asked)
    mixed, alone = (weigh(way, (name,) * 2).memory for name in ("limited|plain", "plain"))
    assert mixed.parts["tensors"] == alone.parts["tensors"]
    assert set(mixed.unknown) == {*alone.unknown, "workspace of limited", "plan of limited"}
