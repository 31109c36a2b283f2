"""Traffic: bytes are counted while somebody asks, for each that asks."""

from longca.kernels.traffic import count, counted


def test_counters_count_apart():
    with counted() as outer:
        count("p2p", 1)
        with counted() as inner:
            count("p2p", 10)
            count("all_gather", 3)
    count("p2p", 100)
    assert outer == {"p2p": 11, "all_gather": 3}
    assert inner == {"p2p": 10, "all_gather": 3}
