"""Links of CPUs: windows, pushes, posts and their order, who gets a link, and what is left when one is gone."""

import ctypes
import mmap
import os
import re

import numpy as np
import pytest
import torch

from longca_cp.transports.strided import strided_copies

from .test_strategies import EXACT
from .test_strategies import sizes as worlds_of


@worlds_of(4)
def test_windows_hold_what_was_pushed_in_any_order(world):
    for seed in range(3):
        assert all(world.run("pushes", world.size, seed))


@worlds_of(2)
def test_a_peer_that_does_not_post_is_named_within_the_deadline(world):
    (_, (first, seconds, after)) = world.run("late_posts", 2)
    assert first[0] == "PeerError"
    assert "rank 1 waited 0.5 s for the keys of a test of rank 0" in first[1]
    assert 0.5 <= seconds < 5
    assert after == first  # the link has failed for good


@worlds_of(2)
def test_a_push_that_fails_is_told_by_the_next_call(world):
    for kind, text in world.run("failed_pushes", 2):
        assert kind == "PeerError"
        assert "a push failed" in text


@worlds_of(2)
def test_slots_are_alike_on_all_ranks_and_free_again_when_nobody_has_them(world):
    for found, first, count, refusal in world.run("slots_of_many_plans", 2):
        assert found == [0, 3, 5, 0]
        assert (first, count) == (0, 4096)
        assert refusal == ("LongCAError", "a plan asks for 1 slots, and 0 of 4096 are free")


@worlds_of(4)
def test_each_axis_of_a_mesh_has_a_link_of_its_own(world):
    for rank, (has_link, shared, told) in enumerate(world.run("links_of_meshes", 4)):
        assert has_link == {
            "auto": [False, False, False],
            "collectives": [False, False, False],
            "copy_engine": [False, True, True],
        }
        assert shared
        assert told == [rank // 2 * 2, rank // 2 * 2 + 1]


HOSTS = ("ranks 0 and 1 are on two hosts", True)
NO_ACCESS = ("the GPU of rank 0 has no peer access to that of rank 1", False)
USP, LOONGTRAIN = (("ring", 2), ("ulysses", 2)), (("outer", 2), ("inner", 1), ("heads", 2))


def refusal(lack):
    """The error where the copy engine was asked for."""
    text = f"transport='copy_engine' was asked for, and {lack[0]}. Ask for transport='collectives' or 'auto'"
    return "UnsupportedError", text


@pytest.mark.parametrize(
    ("sizes", "lacks", "moved", "refused"),
    [
        (USP, {}, "ee", None),
        (USP, {0: HOSTS}, "ce", None),
        (USP, {0: NO_ACCESS}, "ce", NO_ACCESS),
        (USP, {0: HOSTS, 1: HOSTS}, "cc", HOSTS),
        (LOONGTRAIN, {0: HOSTS}, "cce", None),
        ((("ring", 4), ("ulysses", 1)), {}, "ec", None),
        ((("ring", 4), ("ulysses", 1)), {0: HOSTS}, "cc", HOSTS),
    ],
    ids=str,
)
@worlds_of(4)
def test_each_axis_has_its_own_transport_and_the_reason_for_collectives_is_logged_once(
    world, sizes, lacks, moved, refused
):
    names = {"e": "copy_engine", "c": "collectives"}
    wanted = [names[each] for each in moved]
    for found in world.run("transports_of_axes", world.size, sizes, lacks):
        of = {
            at: f"attention: tensors move along the axis {sizes[at][0]} by collectives, because {lack}"
            for at, (lack, _) in lacks.items()
        }
        taken, errors, log = found["auto"]
        assert (taken, errors) == ([wanted] * 2, [None] * 2)
        assert log == list(of.values())
        taken, errors, log = found["copy_engine"]
        assert errors == [refused and refusal(refused)] * 2
        assert taken == ([] if refused else [wanted] * 2)
        assert refused or log == list(of.values())


@worlds_of(4)
def test_axes_of_two_transports_give_what_one_device_gives(world):
    double = (("outer", 2), ("inner", 2), ("heads", 1))
    for strategy, sizes, lacks, moved in (
        ("usp", USP, {0: HOSTS}, ["collectives", "copy_engine"]),
        ("usp", USP, {1: HOSTS}, ["copy_engine", "collectives"]),
        ("loongtrain", LOONGTRAIN, {0: HOSTS}, ["collectives", "collectives", "copy_engine"]),
        ("loongtrain", double, {0: HOSTS}, ["collectives", "copy_engine", "collectives"]),
        ("loongtrain", double, {1: HOSTS}, ["copy_engine", "collectives", "collectives"]),
    ):
        about = world.size, strategy, sizes, lacks, "causal", "zigzag"
        for transports, error in world.run("results_where_an_axis_lacks_a_link", *about):
            assert transports == moved
            assert error <= EXACT


@worlds_of(2)
def test_a_trial_that_fails_on_one_rank_refuses_the_link_on_all(world):
    for kind, text in world.run("failed_trials", 2):
        assert kind == "UnsupportedError"
        assert "a trial of the copy engine failed. rank 1 says: other bytes came" in text


@worlds_of(2)
def test_a_window_that_does_not_fit_is_refused_on_all_ranks(world):
    for refusal, left, error in world.run("windows_that_do_not_fit", world.size):
        assert refusal[0] == "WindowMemoryError"
        assert re.search(r"needs a window of \d{5,} bytes, and it does not fit. rank 1: .*File too large", refusal[1])
        assert left == 0
        assert error <= EXACT


@worlds_of(2)
def test_nothing_is_left_when_plans_and_strategies_are_gone(world):
    before = sorted(os.listdir("/dev/shm"))
    for during, without_plan, after in world.run("what_is_left", 2):
        assert during[1] == without_plan[1] == 1
        assert during[2] > mmap.PAGESIZE
        assert during[0] - without_plan[0] == 2 * -(-during[2] // mmap.PAGESIZE)  # the windows of both ranks
        assert without_plan[2] == 0
        assert after == [0, 0, 0]
    assert [name for name in sorted(os.listdir("/dev/shm")) if name not in before and "longca" in name] == []


# Strided copies


@pytest.mark.parametrize(
    ("shape", "of", "count"),
    [
        ((6, 4, 32), lambda x: x, 1),
        ((6, 4, 32), lambda x: x[2:5], 1),
        ((6, 8, 32), lambda x: x[:, 2:4], 1),
        ((6, 8, 32), lambda x: x[:, 1:7:2], 6),
        ((2, 6, 8, 32), lambda x: x[:, 1:3, 2:4], 2),
        ((3, 64), lambda x: x[:, :40].T[..., None], 1),
        ((5,), lambda x: x[::3], None),
        ((6, 1, 32), lambda x: x.expand(6, 4, 32), None),
        ((200, 8, 32), lambda x: x[:, 1:7:2], None),
    ],
)
def test_strided_copies_copy_just_the_rows(shape, of, count):
    source = of(torch.arange(float(np.prod(shape))).view(shape))
    buffer = torch.zeros(shape) if source.shape == of(torch.zeros(shape)).shape else torch.zeros(source.shape)
    into = of(buffer) if not source.stride().count(0) else torch.zeros(source.shape)
    copies = strided_copies(into, source)
    assert (None if copies is None else len(copies)) == count
    do(copies or (), into, source)
    if copies:
        assert torch.equal(into, source)
        wanted = torch.zeros(shape)
        of(wanted).copy_(source)
        assert torch.equal(buffer, wanted)


def do(copies, into, source):
    """Makes the copies, as a copy engine would."""
    for copy in copies:
        for row in range(copy.height):
            to, of_row = copy.into + row * copy.into_pitch, copy.source + row * copy.source_pitch
            ctypes.memmove(into.data_ptr() + to, source.data_ptr() + of_row, copy.width)
