"""Communication alone: the collectives of a case without its kernels, as nccl-tests would measure them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

from longca_bench.measuring.timing import time_calls
from longca_bench.measuring.traffic import Collective
from longca_bench.measuring.world import World

__all__ = ["ALL", "Bandwidth", "measure_communication", "repeat"]

#: The name of all kinds together.
ALL = "all"

Bandwidth = dict[str, int | float]


def measure_communication(collectives: Sequence[Collective], world: World, budget: float) -> dict[str, Bandwidth]:
    """The time and bandwidths of collectives, by kind and all together. All ranks call this.

    algbw is bytes over seconds. busbw is the bytes that each rank sends over seconds, so it does not depend on the
    number of ranks. Bytes are those of the rank with the most bytes, because shards can differ.

    Args:
        collectives: This rank's collectives.
        world: The ranks.
        budget: Seconds of samples for each kind.
    """
    kinds = sorted({kind for kinds in world.everyone([c.kind for c in collectives]) for kind in kinds})
    found = {kind: _measured([c for c in collectives if c.kind == kind], world, budget) for kind in kinds}
    if len(kinds) == 1:
        return {**found, ALL: found[kinds[0]]}
    return {**found, ALL: _measured(collectives, world, budget)} if kinds else {}


def repeat(collectives: Sequence[Collective]) -> None:
    """Starts collectives again in their order, and then waits for all of them, as late as any computation needs."""
    for work in [*chain.from_iterable(collective.start() for collective in collectives)]:
        work.wait()


def _measured(collectives: Sequence[Collective], world: World, budget: float) -> Bandwidth:
    seconds = time_calls(partial(repeat, collectives), world, budget).median
    sums = sum(c.size for c in collectives), sum(c.sent for c in collectives), len(collectives)
    size, sent, calls = map(max, zip(*world.everyone(sums), strict=True))
    rate = 1e-9 / seconds
    return {"calls": calls, "bytes": size, "seconds": seconds, "algbw": size * rate, "busbw": sent * rate}
