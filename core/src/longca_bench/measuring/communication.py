"""Communication alone: the collectives of a case without its kernels, as nccl-tests would measure them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from longca_bench.measuring.commands import Traffic
from longca_bench.measuring.timing import Timing
from longca_bench.measuring.world import World

__all__ = ["ALL", "Bandwidth", "measure_communication"]

#: The name of all kinds together.
ALL = "all"

Bandwidth = dict[str, int | float]


def measure_communication(
    traffic: Mapping[str, Traffic], world: World, timed: Callable[[str], Timing]
) -> dict[str, Bandwidth]:
    """The time and bandwidths of collectives, by kind and all together. All ranks call this.

    algbw is bytes over seconds. busbw is the bytes that each rank sends over seconds, so it does not depend on the
    number of ranks. Bytes are those of the rank with the most bytes, because shards can differ.

    Args:
        traffic: This rank's collectives, by kind.
        world: The ranks.
        timed: Times the collectives of a kind, or of all kinds.
    """
    everyones = world.everyone(dict(traffic), dict[str, Traffic])
    kinds = sorted({kind for each in everyones for kind in each})
    whole = [each | {ALL: sum(each.values(), Traffic())} for each in everyones]
    found = {kind: _measured([each.get(kind, Traffic()) for each in whole], timed(kind)) for kind in kinds}
    if len(kinds) > 1:
        found[ALL] = _measured([each[ALL] for each in whole], timed(ALL))
    elif kinds:
        found[ALL] = found[kinds[0]]
    return found


def _measured(everyones: list[Traffic], timing: Timing) -> Bandwidth:
    size, sent, calls = (max(getattr(each, name) for each in everyones) for name in ("size", "sent", "calls"))
    rate = 1e-9 / timing.median
    return {"calls": calls, "bytes": size, "seconds": timing.median, "algbw": size * rate, "busbw": sent * rate}
