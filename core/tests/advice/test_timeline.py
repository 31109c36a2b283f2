"""How long calls take: by hand on small schedules, and between bounds that hold for any."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.manifests.schedule import MOVES, Move, Phase
from longca_advice.network import Link, Network, Rates, Topology
from longca_advice.timeline import timeline

# A byte a second, so that bytes are seconds.
NETWORK = Network({kind: {2: Link(1.0)} for kind in MOVES}, Link(0.5))


def hop(seconds, spread=1, axis="ring"):
    return Move("p2p", axis, seconds, seconds, spread)


def gather(seconds):
    return Move("all_gather", "ring", seconds, seconds)


def ring(ranks):
    return Topology((("ring", ranks),))


def run(schedule, compute, topology=None, rates=None):
    compute = np.array(compute, np.float64)
    return timeline(tuple(schedule), compute, NETWORK, topology or ring(len(compute)), rates)


def test_what_is_beside_a_step_is_hidden():
    found = run([Phase(0, moves=(gather(3),)), Phase(1)], [[5, 1], [4, 1]])
    assert (found.seconds, found.compute, found.exposed, found.beside) == (6, 6, 0, 3)


def test_what_is_longer_than_a_step_is_exposed():
    found = run([Phase(0, moves=(gather(7),)), Phase(1)], [[5, 1], [4, 1]])
    assert (found.seconds, found.exposed) == (8, 2)


def test_a_collective_begins_when_the_last_rank_does():
    found = run([Phase(0), Phase(moves=(gather(2),)), Phase(1)], [[5, 1], [1, 4]])
    assert found.seconds == 5 + 2 + 4


def test_a_hop_waits_for_neighbours_alone():
    compute = np.ones((8, 2))
    compute[0, 0] = 10
    found = run([Phase(0), Phase(1, moves=(hop(1),))], compute)
    assert found.seconds == 11
    # A rank that is far from the slow one was not held up, so that its next slow step does not add to it.
    compute[4, 1] = 10
    assert run([Phase(0), Phase(1, moves=(hop(1),))], compute).seconds == 11


def test_rates_are_what_a_call_costs_beside():
    rates = Rates(per_byte=0.5, slowdown=0.25, slowdown_p2p=0.125, per_phase=1.0)
    phases = [Phase(touched=2), Phase(0, moves=(gather(4),), merged=4), Phase(1, moves=(hop(4),))]
    found = run(phases, [[10, 10], [0, 0]], rates=rates)
    assert found.seconds == 1 + (2 + 10 + 1 + 1) + (10 + 0.5 + 1)
    assert found.exposed == 0
    assert (found.touched, found.beside, found.beside_p2p, found.count) == (6, 4, 4, 2)


def test_a_move_may_take_several_phases():
    phases = [Phase(0, moves=(hop(9, 3),)), Phase(1), Phase(2)]
    assert run(phases, [[4, 4, 4]] * 2).seconds == 12
    assert run(phases, [[1, 1, 1]] * 2).seconds == 9


def test_links_of_a_host_and_between_hosts_are_under_way_together():
    topology = Topology((("outer", 2), ("inner", 2)), ranks_per_host=2)
    phases = [Phase(moves=(hop(3, axis="outer"), hop(4, axis="inner")))]
    assert run(phases, np.zeros((4, 0)), topology).seconds == 6
    assert run(phases, np.zeros((4, 0)), Topology((("outer", 2), ("inner", 2)))).seconds == 7


@st.composite
def calls(draw):
    ranks, steps = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    seconds = st.integers(0, 20)
    compute = draw(st.lists(st.lists(seconds, min_size=steps, max_size=steps), min_size=ranks, max_size=ranks))
    kinds = st.sampled_from(MOVES)
    phases = []
    for step in range(steps):
        sizes = draw(st.lists(st.tuples(kinds, seconds), max_size=2))
        moves = tuple(Move(kind, "ring", size, size) for kind, size in sizes)
        phases.append(Phase(step, moves=moves, beside=draw(st.booleans())))
    return phases, np.array(compute, np.float64)


@given(calls())
def test_a_call_is_between_its_slowest_rank_and_everything_one_after_another(call):
    phases, compute = call
    found = run(phases, compute)
    moves = sum(move.sent for phase in phases for move in phase.moves)
    assert max(compute.sum(1).max(), moves) <= found.seconds <= compute.max(0).sum() + moves
    assert found.seconds == pytest.approx(found.compute + found.exposed)


@given(calls())
def test_more_to_compute_or_to_move_never_takes_less(call):
    phases, compute = call
    more = [Phase(p.step, moves=(*p.moves, gather(1)), beside=p.beside) for p in phases]
    found = run(phases, compute).seconds
    assert run(more, compute).seconds >= found
    assert run(phases, compute + 1).seconds >= found


def test_pushes_slow_no_kernel():
    rates = Rates(slowdown=0.25, slowdown_p2p=0.125)
    pushed, hopped = ([Phase(0, moves=(Move(kind, "ring", 4, 4),))] for kind in ("push", "p2p"))
    found = run(pushed, [[8], [8]], rates=rates)
    assert (found.seconds, found.beside, found.beside_p2p) == (8, 0, 0)
    assert run(hopped, [[8], [8]], rates=rates).seconds == 8.5
    both = [Phase(0, moves=(Move("push", "ring", 4, 4), Move("p2p", "ring", 4, 4)))]
    assert run(both, [[8], [8]], rates=rates).seconds == 8 + 0.125 * 4
