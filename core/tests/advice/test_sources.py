"""Sources: what evidence of a device says of its hosts, and of what calls cost beside kernels and collectives."""

import pytest

from longca_advice.evidence import Collected
from longca_advice.network import Rates
from longca_advice.sources import Sources

from .rows import RUN, row

GB = 10**9
OTHER = RUN.model_copy(update={"device": "Another GPU"})


def shared(seconds=0.01, mesh="ring=2", kind="p2p", bandwidth=1e11, size=GB, **fields):
    """A row of a call on several ranks that moved some bytes over a link of this bandwidth."""
    ranks = int(mesh.rpartition("=")[2])
    sent = size if kind == "p2p" else size * (ranks - 1) / ranks
    moved = {kind: Collected(calls=1, bytes=size, seconds=sent / bandwidth)}
    return row(strategy="mine", mesh=mesh, communication=moved, seconds=seconds, **fields)


def links(rows, device=RUN.device, between=None):
    return Sources(tuple(rows)).links(device, 8, between)


def test_links_are_of_what_rows_moved():
    found = links([row(), shared(mesh="ulysses=4", kind="all_to_all")]).network.inside
    assert found["all_to_all"][4].bandwidth == pytest.approx(1e11)
    assert list(found) == ["all_to_all"]


def test_a_network_is_of_the_device_alone():
    rows = [shared(size=n * GB) for n in (1, 2, 4)] + [shared(run=OTHER, bandwidth=1e9, size=n * GB) for n in (1, 2)]
    for device, bandwidth in ((RUN.device, 1e11), (OTHER.device, 1e9)):
        assert links(rows, device).network.inside["p2p"][2].bandwidth == pytest.approx(bandwidth)
    assert links(rows, "a third GPU").network.inside == {}


def test_rates_are_of_the_device_alone():
    def observed(run, per_phase):
        return [shared(0.01 + n * per_phase, run=run, observed=(0.01, 0, 0, 0, n)) for n in (1, 4, 16)]

    rows = [*observed(RUN, 1e-4), *observed(OTHER, 1e-3), row()]
    assert links(rows).rates.per_phase == pytest.approx(1e-4)
    assert links(rows, OTHER.device).rates.per_phase == pytest.approx(1e-3)
    assert links(rows, "a third GPU").rates == Rates()
