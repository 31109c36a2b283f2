"""Ranks that compare a call. Threads stand for the ranks, and share one store."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from longca.errors import RequestError, UnsupportedError
from longca.parallel import agreement
from longca.parallel.agreement import Ranks


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(agreement, "PATIENCE", 0.1)
    made = dist.HashStore()
    made.set_timeout(timedelta(seconds=20))
    return made


def together(store, members, work, made=None):
    """What `work` returns or raises on each rank."""
    made = made or [Ranks(store, members, rank) for rank in members]

    def one(ranks, rank):
        try:
            return work(ranks, rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(one, made, members))


@pytest.mark.parametrize("members", [(0,), (0, 1), (3, 5, 6, 9)])
def test_ranks_that_agree_go_on_and_leave_little_behind(store, members):
    def work(ranks, rank):
        for call in range(20):
            ranks.agree({"mask": f"number {call}"})

    assert together(store, members, work) == [None] * len(members)
    # Ranks read the last comparison, and may read the one before it.
    assert store.num_keys() <= 2 * (len(members) + 3)


def test_everyone_learns_who_differs_in_what_and_agrees_the_next_time(store):
    def work(ranks, rank):
        words = {"mask": "full" if rank == 11 else "causal", "heads": "8:2", "kernel": "fa3" if rank % 2 else "fa4"}
        with pytest.raises(RequestError) as found, ranks.sharing_errors():
            ranks.agree(words)
        ranks.agree({"mask": "the same"})
        return str(found.value)

    found = together(store, tuple(range(12)), work)
    assert len(set(found)) == 1
    assert "no rank has moved data in this call" in found[0]
    assert "mask: ranks 0, 1, 2, 3, 4, 5, 6, 7 and 3 more have causal, rank 11 has full." in found[0]
    assert "kernel: ranks 0, 2, 4, 6, 8, 10 have fa4, ranks 1, 3, 5, 7, 9, 11 have fa3." in found[0]
    assert "heads" not in found[0]


def test_an_error_of_one_rank_reaches_all(store):
    def work(ranks, rank):
        with ranks.sharing_errors():
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
        with pytest.raises(UnsupportedError, match=f"mine is {rank}"), ranks.sharing_errors():
            raise UnsupportedError(f"mine is {rank}")
        ranks.agree({"mask": "the same"})
        return "agreed"

    assert together(store, (0, 1, 2), work) == ["agreed"] * 3


def test_a_rank_without_the_others_names_the_absent(store):
    store.set_timeout(timedelta(seconds=0.2))
    with pytest.raises(RequestError, match=r"ranks 1, 2 made no new call on this mesh within 0\.2 s"):
        Ranks(store, (0, 1, 2), 0).agree({"mask": "causal"})


def test_a_rank_that_failed_by_itself_is_in_step_again(store):
    made = [Ranks(store, (0, 1), rank) for rank in (0, 1)]
    with pytest.raises(UnsupportedError), made[0].sharing_errors():
        raise UnsupportedError("asked by rank 0 alone")
    with pytest.raises(RequestError, match="rank 0 failed"):
        made[1].agree({"mask": "causal"})
    assert together(store, (0, 1), lambda ranks, rank: ranks.agree({"mask": "causal"}), made) == [None] * 2


def test_known_calls_that_differ_are_found_at_the_next_comparison(store):
    def work(ranks, rank):
        ranks.agree({"mask": "causal"})
        for call in ("causal", "full") if rank < 2 else ("full", "causal"):
            ranks.note(call)
        try:
            ranks.agree({"mask": "full"})
        finally:
            ranks.note("window")
            ranks.agree({"mask": "full"})  # each comparison is of the calls since the one before

    found = together(store, (0, 1, 2), work)
    assert len({str(error) for error in found}) == 1
    assert "calls before: ranks 0, 1 have 2 since the ranks last compared (digest " in str(found[0])


def test_meshes_of_the_same_ranks_do_not_meet(store):
    def work(ranks, rank):
        other = Ranks(store, (0, 1), rank, "another mesh")
        first, second = (ranks, other) if rank else (other, ranks)
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(one.agree, {"mesh": str(one is other)}) for one in (first, second)]
            return [each.result() for each in asked]

    assert together(store, (0, 1), work) == [[None, None]] * 2


def test_a_rank_that_waits_says_for_whom(store, caplog, monkeypatch):
    monkeypatch.setattr(agreement, "ALARM", 0.1)

    def work(ranks, rank):
        if rank:
            time.sleep(0.6)
        ranks.agree({"mask": "causal"})

    with caplog.at_level(logging.WARNING, "longca"):
        assert together(store, (0, 1, 2), work) == [None] * 3
    (record,) = caplog.records
    assert "rank 0 has a new call of longca.attention, and waits for ranks 1, 2." in record.getMessage()
