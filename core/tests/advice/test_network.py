"""What collectives take: fitted to measured ones, and by a link's figures between hosts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.errors import UnsupportedError
from longca.manifests.schedule import MOVES, Move
from longca_advice.evidence import Collected
from longca_advice.network import Link, Network, Topology, Transferred, fit_links, transferred

INSIDE = {kind: {4: Link(200e9, 50e-6)} for kind in MOVES}
MIB = 2**20


@pytest.mark.parametrize(
    ("text", "bandwidth", "latency"),
    [
        ("400Gb", 50e9, 0),
        ("400 Gb/s", 50e9, 0),
        ("200Gbps", 25e9, 0),
        ("50GB/s", 50e9, 0),
        ("50GB/s,5µs", 50e9, 5e-6),
        ("50GB/s, 5us", 50e9, 5e-6),
        ("12.5GB, 0.1ms", 12.5e9, 1e-4),
        ("1.6Tbit/s,800ns", 200e9, 8e-7),
        ("100Mb", 12.5e6, 0),
    ],
)
def test_a_link_is_read_from_words(text, bandwidth, latency):
    link = Link.parse(text)
    assert link.bandwidth == pytest.approx(bandwidth)
    assert link.latency == pytest.approx(latency)


rates = st.floats(1e9, 1e12)


@given(
    rates,
    st.floats(1e-6, 1e-3),
    st.lists(st.tuples(st.integers(1, 8), st.integers(MIB, 2**32)), min_size=2, max_size=9),
)
def test_a_fit_finds_what_made_the_seconds(bandwidth, latency, calls):
    rows = [Transferred("p2p", 2, n, size, n * latency + size / bandwidth) for n, size in calls]
    link = fit_links(rows)["p2p"][2]
    for row in rows:
        assert row.calls * link.latency + row.sent / link.bandwidth == pytest.approx(row.seconds, rel=1e-3)


def test_within_a_host_it_is_latency_and_bytes_that_leave():
    topology = Topology((("ring", 4),), ranks_per_host=8)
    for kind in MOVES:
        assert Network(INSIDE).seconds(Move(kind, "ring", 400 * MIB, 200 * MIB), topology) == pytest.approx(
            50e-6 + 200 * MIB / 200e9
        )


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        ("p2p", 1e-5 + 1e9 / 50e9),
        ("all_to_all", 1e-5 + 1e9 * 8 / 15 / 50e9),
        ("all_gather", 1e-5 + 1e9 / 8 / 50e9),
        ("reduce_scatter", 1e-5 + 1e9 / 8 / 50e9),
    ],
)
def test_between_hosts_the_network_of_each_gpu_counts(kind, seconds):
    fast = {kind: {8: Link(1e15)}}
    topology = Topology((("ring", 16),), ranks_per_host=8)
    network = Network(fast, Link(50e9, 1e-5))
    assert network.seconds(Move(kind, "ring", 0, 10**9), topology) == pytest.approx(seconds)


def test_the_innermost_axis_shares_hosts_first():
    topology = Topology((("ring", 4), ("ulysses", 8)), ranks_per_host=8)
    assert (topology.shared("ring"), topology.shared("ulysses")) == (1, 8)


def test_what_is_not_known_is_said():
    topology = Topology((("ring", 16),), ranks_per_host=8)
    move = Move("p2p", "ring", 1, 1)
    with pytest.raises(UnsupportedError, match="no p2p was measured"):
        Network({}).seconds(move, topology)
    with pytest.raises(UnsupportedError, match=r"on several hosts, and no network .*--network 400Gb"):
        Network(INSIDE).seconds(move, topology)


def test_measured_calls_give_collectives_by_axis():
    kinds = {"p2p": (3, 100, 2e-3), "all_to_all": (2, 100, 1e-3), "all": (5, 200, 3e-3)}
    moved = {kind: Collected(calls=n, bytes=size, seconds=taken) for kind, (n, size, taken) in kinds.items()}
    assert list(transferred("ring=2,ulysses=4", moved)) == [
        Transferred("p2p", 2, 3, 100, 2e-3),
        Transferred("all_to_all", 4, 2, 75, 1e-3),
    ]


def test_pushes_leave_a_rank_whole_and_count_as_hops_where_nobody_measured_them():
    moved = {"push": Collected(calls=4, bytes=100, seconds=1e-3)}
    assert list(transferred("ring=2", moved)) == [Transferred("push", 2, 4, 100, 1e-3)]
    push, here = Move("push", "ring", 10**9, 10**9), Topology((("ring", 2),))
    links = {"p2p": {2: Link(1e9)}, "push": {2: Link(4e9)}}
    assert Network(links).seconds(push, here) == 0.25
    assert Network({"p2p": links["p2p"]}).seconds(push, here) == 1.0
    with pytest.raises(UnsupportedError, match="no push was measured"):
        Network({"all_gather": links["p2p"]}).seconds(push, here)
