"""Ranks that wait with a new call, and ranks that made a known one in its place. Threads stand for the ranks."""

import logging
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from longca.errors import RequestError
from longca.parallel import agreement, alarms, turns
from longca.parallel.agreement import Ranks

from .test_agreement import together

WORDS = {"mask": "causal", "heads": "8:2"}


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(agreement, "ALARM", 0.05)
    monkeypatch.setattr(alarms, "PAUSE", 0.05)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    made = dist.HashStore()
    made.set_timeout(timedelta(seconds=20))
    yield made
    alarms.end()
    turns.TURNS.clear()


def known(ranks, *numbers):
    for number in numbers:
        ranks.note(number, WORDS)


def test_a_rank_that_made_a_known_call_is_found_and_told(store, caplog):
    def work(ranks, rank):
        ranks.agree({})
        known(ranks, 0, 0)
        if rank == 2:
            with pytest.raises(RequestError) as told:
                ranks.agree(WORDS | {"mask": "full"})
            known(ranks, 1)  # the call of the others
        else:
            known(ranks, 1)
            while not ranks._turn.told:
                time.sleep(0.01)
            with pytest.raises(RequestError) as told:
                known(ranks, 2)
        known(ranks, 3)
        ranks.agree({})
        return str(told.value)

    with caplog.at_level(logging.ERROR, "longca"):
        found = together(store, (0, 1, 2), work)
    assert "ranks 0, 1 made a call that was known there, while rank 2 came with a new one." in found[2]
    assert "mask: ranks 0, 1 have causal, rank 2 has full. The call has begun on ranks 0, 1" in found[2]
    assert "heads" not in found[2]
    assert "rank 1 made a call that was known there, while rank 2 came with a new one." in found[1]
    assert sorted(record.getMessage() for record in caplog.records) == [
        f"on rank {rank}: {found[rank]}" for rank in (0, 1)
    ]


def test_a_rank_that_takes_long_has_not_gone_past(store):
    def work(ranks, rank):
        ranks.agree({})
        known(ranks, *range(5))
        if rank:
            time.sleep(0.6)
        ranks.agree(WORDS)
        return ranks._turn.told

    assert together(store, (0, 1), work) == ["", ""]


def test_alarms_leave_little_behind(store, monkeypatch):
    monkeypatch.setattr(alarms, "_KEPT", 2)

    def work(ranks, rank):
        for _ in range(6):
            ranks.agree(WORDS)
            time.sleep(0.2 * rank)

    assert together(store, (0, 1), work) == [None] * 2
    assert store.num_keys() <= 2 * (2 + 3) + 1 + 2


def test_a_store_that_nothing_moves_for_is_left_in_peace(store):
    def work(ranks, rank):
        ranks.agree({})
        known(ranks, 0)
        ranks.moved()

    together(store, (0, 1), work)
    listener = alarms._LISTENERS[0]
    assert listener.is_alive()
    time.sleep(0.2)
    assert not listener._is_due()
    Ranks(store, (0, 1), 0).note(1, WORDS)
    waits = []
    for _ in range(100):
        if listener._is_due():
            waits.append(listener._wait)
        time.sleep(0.01)
    assert len(waits) <= 5, "intervals double"
    alarms.end()
    assert not listener.is_alive()


def test_a_listener_ends_with_the_process_group(store, monkeypatch):
    together(store, (0, 1), lambda ranks, rank: ranks.agree({}))
    listener = alarms._LISTENERS[0]
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    listener.join(5)
    assert listener.store is None
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    together(store, (0, 1), lambda ranks, rank: ranks.agree({}))
    assert alarms._LISTENERS[0].is_alive()
