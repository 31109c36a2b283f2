"""Peer access: what a process finds out about copies between GPUs, and the facts that doctor shows of it."""

import pytest
import torch

from longca.errors import LongCAError
from longca_bench.measuring import peer_access
from longca_bench.measuring.peer_access import PeerAccess, bandwidths, measure_peer_access
from longca_bench.reports.machine import find_peers

#: Three GPUs, of which the last two have no access to each other.
REACHES = [[True, True, True], [True, True, False], [True, False, True]]


def test_only_pairs_with_access_are_measured():
    asked = []

    def seconds(source, into):
        asked.append((source, into))
        return 0.002

    found = bandwidths(REACHES, seconds, size=10**9)
    assert asked == [(0, 1), (0, 2), (1, 0), (2, 0)]
    assert found == [[None, 500.0, 500.0], [500.0, None, None], [500.0, None, None]]


def test_the_facts_of_a_whole_machine():
    rates = ((None, 380.0, 379.0), (381.0, None, 380.0), (380.0, 382.0, None))
    facts = list(find_peers(PeerAccess(reaches=[[True] * 3] * 3, bandwidths=rates, symmetric="")))
    assert [fact.ok for fact in facts] == [True] * 4
    assert facts[0].found == "to 1: 380 GB/s, to 2: 379 GB/s"
    assert (facts[-1].name, facts[-1].found) == ("symmetric memory", "two processes write into each other's GPU")


def test_a_pair_without_access_and_a_slow_pair_are_told():
    rates = ((None, 380.0, 100.0), (380.0, None, None), (380.0, None, None))
    told = PeerAccess(reaches=REACHES, bandwidths=rates, symmetric="it is not permitted")
    first, second, third, shared = find_peers(told)
    assert (first.ok, second.ok, third.ok) == (False,) * 3
    assert first.advice.startswith("some pairs are slower")
    assert second.found == "to 0: 380 GB/s, to 2: no access"
    assert "by collectives" in second.advice
    assert (shared.ok, shared.found) == (False, "it is not permitted")


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without GPUs")
def test_the_measurement_ends_on_a_machine_without_gpus():
    found = measure_peer_access()
    assert found == {"reaches": [], "bandwidths": [], "symmetric": "no GPU has access to the memory of another one"}


def _module(folder, monkeypatch, text):
    (folder / "some_measurement.py").write_text(text, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return "some_measurement"


def test_a_measurement_that_fails_says_why(tmp_path, monkeypatch):
    failing = _module(tmp_path, monkeypatch, "raise SystemExit('the driver is too old')")
    with pytest.raises(LongCAError, match=r"ended with code 1, .*: the driver is too old"):
        measure_peer_access(failing)
    monkeypatch.setattr(peer_access, "_DEADLINE", 1)
    with pytest.raises(LongCAError, match="did not end within 1 s"):
        measure_peer_access(_module(tmp_path, monkeypatch, "import time; time.sleep(60)"))
