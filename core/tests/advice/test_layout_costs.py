"""Ways: every mesh and placement of a strategy that has a layout, each once, and of the others why they have none."""

import numpy as np
import pytest

from longca_advice.choices import Refused
from longca_advice.layout_costs import LayoutCosts
from longca_advice.strategies import layout_costs_of

from .crossed import links


def ways(question, ranks, **linked):
    found = list(layout_costs_of(question, ranks, links(**linked), ("crossed",)))
    return [way for way in found if isinstance(way, LayoutCosts)], [one for one in found if isinstance(one, Refused)]


def test_layouts_are_looked_at_once(asked):
    found, _ = ways(asked(), 8)
    assert [(way.mesh, way.placement) for way in found] == [("outer=4,inner=2", name) for name in ("plain", "reversed")]


def test_what_is_refused_is_named(asked):
    _, refused = ways(asked(), 8)
    assert [(one.kernel, one.strategy, one.reasons) for one in refused] == [
        (None, "crossed on 1 of 2 meshes", ("an inner axis of 4 is too many",)),
        (None, "crossed on 1 of 2 meshes placed documents", ("there are no documents",)),
    ]


@pytest.mark.parametrize("ranks", [2, 3, 5, 7])
def test_ranks_that_have_no_mesh_are_refused(asked, ranks):
    found, (refused,) = ways(asked(), ranks)
    assert not found
    assert refused.strategy == "crossed"
    assert refused.reasons == (f"{ranks} devices cannot be split into outer × inner, 2 or more along each",)


def test_pairs_of_a_causal_mask_take_longer_the_later_their_queries(asked):
    plain, backwards = ways(asked(), 4)[0]
    for seconds in (plain.rough("plain", "forward"), plain.exact("plain", "forward", "forward")):
        by_rank = plain.pairs.seconds(seconds)
        assert by_rank.shape == (4, 1)
        assert np.all(np.diff(by_rank[:, 0]) > 0)
    assert plain.pairs.seconds(plain.exact("plain", "forward", "forward"))[::-1] == pytest.approx(
        backwards.pairs.seconds(backwards.exact("plain", "forward", "forward"))
    )


def test_a_kernel_takes_every_step_or_is_refused(asked):
    way = ways(asked(), 4)[0][0]
    assert way.refusal("plain", "forward") is None
    assert way.checked == ""
    other = ways(asked(dtype="float16"), 4)[0][0]
    assert "float16" in str(other.refusal("plain", "forward").reasons[0])
