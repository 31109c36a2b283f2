"""Ranks that compare a call. Threads stand for the ranks, and share one store."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from longca.errors import RequestError, UnsupportedError
from longca.parallel import agreement, turns
from longca.parallel.agreement import Ranks


@pytest.fixture
def store():
    made = dist.HashStore()
    made.set_timeout(timedelta(seconds=20))
    yield made
    turns.TURNS.clear()


def together(store, members, work):
    """What `work` returns or raises on each rank."""

    def one(rank):
        try:
            return work(Ranks(store, members, rank), rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(one, members))


@pytest.mark.parametrize("members", [(0,), (0, 1), (3, 5, 6, 9)])
def test_ranks_that_agree_go_on_and_leave_little_behind(store, members):
    def work(ranks, rank):
        for call in range(20):
            ranks.agree({"mask": f"number {call}"})

    assert together(store, members, work) == [None] * len(members)
    # Ranks read the last comparison, and may read the one before it.
    assert store.num_keys() <= 2 * (len(members) + 2)


def test_everyone_is_told_who_differs_in_what(store):
    def work(ranks, rank):
        ranks.agree({"mask": "causal" if rank < 3 else "full", "heads": "8:2", "kernel": "fa3" if rank % 2 else "fa4"})

    found = together(store, (0, 1, 2, 3), work)
    assert len({str(error) for error in found}) == 1
    assert all(type(error) is RequestError for error in found)
    assert "mask: ranks 0, 1, 2 have causal, rank 3 has full." in str(found[0])
    assert "kernel: ranks 0, 2 have fa4, ranks 1, 3 have fa3." in str(found[0])
    assert "heads" not in str(found[0])


def test_and_agrees_the_next_time(store):
    def work(ranks, rank):
        with pytest.raises(RequestError):
            ranks.agree({"mask": str(rank)})
        ranks.agree({"mask": "the same"})
        return "agreed"

    assert together(store, (0, 1), work) == ["agreed"] * 2


def test_an_error_of_one_rank_is_told_to_all(store):
    def work(ranks, rank):
        with ranks.told():
            ranks.agree({"mask": "causal"})
            if rank == 2:
                raise UnsupportedError("there is no kernel here")
            ranks.agree({"layout": "even"})

    *others, mine, last = together(store, (0, 1, 2, 3), work)
    assert type(mine) is UnsupportedError
    for error in (*others, last):
        assert type(error) is RequestError
        assert str(error).startswith("rank 2 failed, and no rank has moved data")
        assert str(error).endswith("Rank 2 raised UnsupportedError: there is no kernel here")


def test_ranks_that_all_fail_raise_their_own_errors_and_stay_in_step(store):
    def work(ranks, rank):
        with pytest.raises(UnsupportedError, match=f"mine is {rank}"), ranks.told():
            raise UnsupportedError(f"mine is {rank}")
        ranks.agree({"mask": "the same"})
        return "agreed"

    assert together(store, (0, 1, 2), work) == ["agreed"] * 3


def test_a_disagreement_is_not_told_again_as_an_error(store):
    def work(ranks, rank):
        with pytest.raises(RequestError, match="asked for different things"), ranks.told():
            ranks.agree({"mask": str(rank)})
        ranks.agree({"mask": "the same"})

    assert together(store, (0, 1), work) == [None] * 2


def test_a_rank_that_is_alone_names_the_absent(store):
    store.set_timeout(timedelta(seconds=0.2))
    with pytest.raises(RequestError, match=r"ranks 1, 2 made no new call on this mesh within 0\.2 s"):
        Ranks(store, (0, 1, 2), 0).agree({"mask": "causal"})


@pytest.mark.parametrize("came_meanwhile", [False, True])
def test_a_rank_that_failed_alone_is_in_step_again(store, monkeypatch, came_meanwhile):
    monkeypatch.setattr(agreement, "PATIENCE", 0.1)
    alone = Ranks(store, (0, 1), 0)
    with pytest.raises(UnsupportedError), alone.told():
        raise UnsupportedError("asked by rank 0 alone")
    if came_meanwhile:
        with pytest.raises(RequestError, match="rank 0 failed"):
            Ranks(store, (0, 1), 1).agree({"mask": "causal"})

    def work(ranks, rank):
        # Who compares before rank 0 does so again is told of the error.
        while rank == 1 and not came_meanwhile and b"failed" in store.get(f"{ranks._prefix}/0/0"):
            time.sleep(0.01)
        ranks.agree({"mask": "causal"})

    assert together(store, (0, 1), work) == [None] * 2


def test_known_calls_that_differ_are_told_at_the_next_comparison(store):
    def work(ranks, rank):
        ranks.agree({"mask": "causal"})
        for number in (0, 1) if rank < 2 else (1, 0):
            ranks.note(number, {})
        try:
            ranks.agree({"mask": "full"})
        finally:
            ranks.note(7, {})
            ranks.agree({"mask": "full"})  # each comparison is of the calls since the one before

    found = together(store, (0, 1, 2), work)
    assert len({str(error) for error in found}) == 1
    assert "calls before: ranks 0, 1 have 2 since the ranks last compared (digest " in str(found[0])
    assert "mask" not in str(found[0]).split("Give")[0].split("moved data")[1]


def test_known_calls_are_compared_now_and_then(store):
    def work(ranks, rank):
        due = []
        for call in range(3 * agreement.EVERY):
            if ranks.note(call, {}):
                due.append(call)
                ranks.agree({})
        return due

    assert together(store, (0, 1), work) == [[255, 511, 767]] * 2


@pytest.mark.parametrize("came_meanwhile", [False, True])
def test_calls_around_a_comparison_that_a_rank_gave_up_are_counted_once(store, monkeypatch, came_meanwhile):
    monkeypatch.setattr(agreement, "PATIENCE", 0.1)
    ranks = [Ranks(store, (0, 1), rank) for rank in (0, 1)]
    for each in ranks:
        each.note(3, {})
    with pytest.raises(UnsupportedError), ranks[0].told():
        raise UnsupportedError("asked by rank 0 alone")
    ranks[0].note(4, {})
    if came_meanwhile:
        with pytest.raises(RequestError, match="rank 0 failed"):
            ranks[1].agree({"mask": "causal"})
    ranks[1].note(4, {})

    def work(ranks, rank):
        while rank == 1 and not came_meanwhile and b"failed" in store.get(f"{ranks._prefix}/0/0"):
            time.sleep(0.01)
        ranks.agree({"mask": "causal"})
        return len(ranks._turn.calls)

    assert together(store, (0, 1), work) == [0, 0]


def test_meshes_of_the_same_ranks_do_not_meet(store):
    def work(ranks, rank):
        other = Ranks(store, (0, 1), rank, "another mesh")
        first, second = (ranks, other) if rank else (other, ranks)
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(one.agree, {"mesh": str(one is other)}) for one in (first, second)]
            return [each.result() for each in asked]

    assert together(store, (0, 1), work) == [[None, None]] * 2


def test_many_ranks_are_named_in_part(store):
    def work(ranks, rank):
        ranks.agree({"mask": "full" if rank == 11 else "causal"})

    error = together(store, tuple(range(12)), work)[0]
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 3 more have causal, rank 11 has full." in str(error)
