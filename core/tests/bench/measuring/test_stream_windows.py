"""Windows of a stream are as long as the free memory of every rank allows, and the same on all ranks."""

import pytest
import torch

from longca_bench.measuring.stream_windows import LEAST, WINDOW, Windows
from longca_bench.measuring.world import World

GIB = 2**30


class Ranks(World):
    """Ranks with some free memory, seen from the first one. All have steps of one size."""

    def __init__(self, *free):
        super().__init__(torch.device("cpu"))
        self.free, self.size = free, len(free)

    def free_bytes(self):
        return self.free[0]

    def everyone(self, value, kind=None):
        return [value + (free - self.free[0]) for free in self.free]


def lengths(steps, world, step, fixed=0):
    windows, found = Windows(steps, world), []
    for window in windows:
        found.append(len(window))
        windows.fit(step, fixed)
    assert sum(found) == steps
    return found


def test_the_first_window_is_short_and_shows_what_a_step_needs():
    assert lengths(50, Ranks(1000 * GIB), GIB) == [LEAST, *[WINDOW] * 4, 8]


@pytest.mark.parametrize(
    ("free", "step", "fixed", "fits"),
    [
        (132 * GIB, 5 * GIB, 16 * GIB, WINDOW),  # 64 K tokens on two H200s, 8 layers
        (130 * GIB, 10 * GIB, 32 * GIB, 6),  # 128 K tokens there
        (74 * GIB, 10 * GIB, 32 * GIB, LEAST),  # and on two H100s
        (GIB, 10 * GIB, 0, LEAST),  # that do not fit; the case says so
    ],
)
def test_three_quarters_of_the_memory_hold_the_worker_and_the_steps(free, step, fixed, fits):
    found = lengths(50, Ranks(free), step, fixed)
    assert found[1] == fits
    if fits > LEAST:
        assert fixed + fits * step <= 0.75 * free


def test_the_rank_with_the_least_memory_counts():
    class Uneven(Ranks):
        def everyone(self, value, kind=None):
            return [value, 3]

    assert lengths(20, Uneven(100 * GIB), GIB)[1] == 3


def test_a_worker_that_says_it_gives_memory_back_gets_no_more():
    assert lengths(20, Ranks(8 * GIB), 2 * GIB, -100 * GIB)[1] == 3


def test_a_cpu_has_the_memory_of_its_host():
    with open("/proc/meminfo", encoding="utf-8") as file:
        total = 1024 * int(file.readline().split()[1])
    assert 0 < World(torch.device("cpu")).free_bytes() < total
