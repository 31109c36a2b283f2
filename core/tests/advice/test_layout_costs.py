"""Ways: every mesh and placement of a strategy that has a layout, each once, and of the others why they have none."""

import numpy as np
import pytest

from longca_advice.choices import Refused
from longca_advice.layout_costs import LayoutCosts, of_role
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


def test_a_placement_that_no_mesh_has_is_refused_by_its_name_alone(asked):
    found, (refused,) = ways(asked(), 4)
    assert len(found) == 2
    assert refused.strategy == "crossed placed documents"


@pytest.mark.parametrize("ranks", [2, 3, 5, 7])
def test_ranks_that_have_no_mesh_are_refused(asked, ranks):
    found, (refused,) = ways(asked(), ranks)
    assert not found
    assert refused.strategy == "crossed"
    assert refused.reasons == (f"{ranks} devices cannot be split into outer × inner, 2 or more along each",)


def test_ranks_are_on_hosts_where_one_has_not_so_many(asked):
    within, across = (ways(asked(), 4, per_host=each)[0][0].topology for each in (4, 2))
    assert within.ranks_per_host is None
    assert across.ranks_per_host == 2
    assert (across.shared("outer"), across.shared("inner")) == (1, 2)


def test_ranks_of_several_hosts_have_no_links(asked, monkeypatch):
    taken = []
    monkeypatch.setattr("longca_advice.layout_costs.schedule_of", lambda *about: taken.append(about[-1]))
    ways_on_hosts = [ways(asked(), 4, per_host=per_host)[0][0] for per_host in (4, 2)]
    for way in ways_on_hosts:
        way.call("forward")
    assert taken == [way.moved_by for way in ways_on_hosts] == ["auto", "collectives"]


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


def test_nothing_is_known_without_evidence(asked):
    way = ways(asked(rows=[]), 4)[0][0]
    assert way.rough("plain", "forward") is None
    assert way.exact("plain", "forward", "forward") is None


def test_a_strategy_that_does_not_say_what_it_moves_has_no_call(asked):
    assert ways(asked(schedule=None), 4)[0][0].call("forward") is None


@pytest.mark.parametrize(
    ("role", "direction"), [("forward", "forward"), ("backward", "backward"), ("both", "backward")]
)
def test_steps_are_asked_in_the_direction_of_a_role(asked, role, direction):
    (step, *_) = ways(asked(), 4)[0][0].steps
    found = of_role(step, role)
    assert found.direction == ("backward" if role == "both" else role)
    assert found.concrete_mask == step.concrete_mask
    assert (found == of_role(step, "both")) == (role == "both")


def test_the_least_time_of_one_kernel_is_its_time(asked):
    for way in ways(asked(), 4)[0]:
        assert way.least(("plain",), "forward") == way.timeline("plain", "forward").seconds
        assert way.least((), "forward") is None
