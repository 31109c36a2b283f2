"""Communication alone: the collectives of a case without its kernels, as nccl-tests would measure them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

from longca.parallel.traffic import Collective
from longca_bench.ranks.rounds import time_rounds
from longca_bench.ranks.world import World

__all__ = ["ALL", "Bandwidth", "measure_communication", "repeat"]

#: What all kinds together are called.
ALL = "all"

Bandwidth = dict[str, int | float]


def measure_communication(collectives: Sequence[Collective], world: World, budget: float) -> dict[str, Bandwidth]:
    """The time and bandwidths of collectives, by kind and all together.

    algbw is bytes over seconds, and busbw what each rank sends over seconds, so that it does not depend on how many
    there are. Bytes are those of the rank that has most; where shards differ, the others have less.

    Args:
        collectives: This rank's.
        world: The ranks, which all call this.
        budget: Seconds to sample each kind for.
    """
    kinds = sorted({kind for kinds in world.everyone([c.kind for c in collectives]) for kind in kinds})
    found = {kind: _measured([c for c in collectives if c.kind == kind], world, budget) for kind in kinds}
    if len(kinds) == 1:
        return {**found, ALL: found[kinds[0]]}
    return {**found, ALL: _measured(collectives, world, budget)} if kinds else {}


def repeat(collectives: Sequence[Collective]) -> None:
    """Begins collectives once more, in their order, and waits for all: no sooner than anything computed needs it."""
    for work in [*chain.from_iterable(collective.start() for collective in collectives)]:
        work.wait()


def _measured(collectives: Sequence[Collective], world: World, budget: float) -> Bandwidth:
    seconds = time_rounds(partial(repeat, collectives), world, budget).median
    sums = sum(c.size for c in collectives), sum(c.sent for c in collectives), len(collectives)
    size, sent, calls = map(max, zip(*world.everyone(sums), strict=True))
    rate = 1e-9 / seconds
    return {"calls": calls, "bytes": size, "seconds": seconds, "algbw": size * rate, "busbw": sent * rate}
