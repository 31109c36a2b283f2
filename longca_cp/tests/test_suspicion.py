"""Suspicion: the earliest late wait is told to the peers of all links, and taken back when what was awaited comes."""

import gc

from longca_cp.transports.suspicion import Suspicion


class Told:
    """Counters that note what peers are told."""

    def __init__(self):
        self.said = []

    def suspect(self, rank):
        self.said.append(rank)


def test_the_earliest_wait_counts_whichever_is_late_first():
    suspicion, told = Suspicion(), [Told(), Told()]
    for each in told:
        suspicion.tell(each)
    first, second = suspicion.wait(), suspicion.wait()
    suspicion.suspect(second, 2)
    suspicion.suspect(first, 1)
    suspicion.suspect(second, 2)
    assert suspicion.rank == 1
    suspicion.suspect(first, 3)  # rank 1 has said that it waits for rank 3
    suspicion.suspect(first, 3)
    assert [each.said for each in told] == [[2, 1, 3]] * 2


def test_what_comes_late_is_no_longer_suspected():
    suspicion, told = Suspicion(), Told()
    suspicion.tell(told)
    first, second = suspicion.wait(), suspicion.wait()
    suspicion.suspect(first, 0)
    suspicion.clear(second)
    assert suspicion.rank == 0
    suspicion.clear(first)
    suspicion.clear(first)
    suspicion.suspect(second, 2)
    suspicion.clear()
    assert (suspicion.rank, told.said) == (None, [0, None, 2, None])


def test_a_failed_link_keeps_its_suspicion_through_later_calls_until_it_is_gone():
    suspicion, told = Suspicion(), Told()
    suspicion.tell(told)
    wait = suspicion.wait()
    suspicion.suspect(wait, 1)
    suspicion.keep(told)
    suspicion.clear(wait)
    suspicion.clear()
    assert (suspicion.rank, told.said) == (1, [1])
    del told
    gc.collect()
    suspicion.clear()
    assert suspicion.rank is None
