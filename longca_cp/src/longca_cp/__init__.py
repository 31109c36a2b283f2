"""Context parallelism for LongCA: Ulysses, Ring P2P, Ring All-Gather, USP and LoongTrain, under every static mask."""

from __future__ import annotations

from longca.hookspecs import hookimpl
from longca.manifests import StrategyManifest, Transport
from longca_cp.placement import Placement

__all__ = ["LOONGTRAIN", "RING_ALL_GATHER", "RING_P2P", "ULYSSES", "USP", "provide_cp_strategy"]

#: The placements of strategies with a ring.
_ALL = tuple(placement.value for placement in Placement)

_TRANSPORTS = (Transport.COLLECTIVES, Transport.COPY_ENGINE)

ULYSSES = StrategyManifest(
    name="ulysses",
    title="Ulysses",
    upstream="https://arxiv.org/abs/2309.14509",
    license="Apache-2.0",
    axes=("ulysses",),
    # Every rank computes on all tokens, so the placement makes no difference to its work.
    placements=(Placement.CONTIGUOUS.value,),
    layout="longca_cp.layouts:ulysses",
    memory="longca_cp.memory:ulysses_memory",
    schedule="longca_cp.schedules:ulysses",
    implementation="longca_cp.ulysses:Ulysses",
    transports=_TRANSPORTS,
)

RING_P2P = StrategyManifest(
    name="ring_p2p",
    title="Ring P2P",
    upstream="https://arxiv.org/abs/2310.01889",
    license="Apache-2.0",
    axes=("ring",),
    placements=_ALL,
    layout="longca_cp.layouts:ring_p2p",
    memory="longca_cp.memory:ring_p2p_memory",
    schedule="longca_cp.schedules:ring_p2p",
    implementation="longca_cp.ring_p2p:RingP2P",
    transports=_TRANSPORTS,
)

RING_ALL_GATHER = StrategyManifest(
    name="ring_all_gather",
    title="Ring All-Gather",
    upstream="https://arxiv.org/abs/2407.21783",
    license="Apache-2.0",
    axes=("ring",),
    placements=_ALL,
    layout="longca_cp.layouts:ring_all_gather",
    memory="longca_cp.memory:ring_all_gather_memory",
    schedule="longca_cp.schedules:ring_all_gather",
    implementation="longca_cp.ring_all_gather:RingAllGather",
    transports=_TRANSPORTS,
)

USP = StrategyManifest(
    name="usp",
    title="USP",
    upstream="https://arxiv.org/abs/2405.07719",
    license="Apache-2.0",
    axes=("ring", "ulysses"),
    placements=_ALL,
    layout="longca_cp.layouts:usp",
    memory="longca_cp.memory:usp_memory",
    schedule="longca_cp.schedules:usp",
    implementation="longca_cp.usp:USP",
    transports=_TRANSPORTS,
)

LOONGTRAIN = StrategyManifest(
    name="loongtrain",
    title="LoongTrain",
    upstream="https://arxiv.org/abs/2406.18485",
    license="Apache-2.0",
    axes=("outer", "inner", "heads"),
    placements=_ALL,
    layout="longca_cp.layouts:loongtrain",
    memory="longca_cp.memory:loongtrain_memory",
    schedule="longca_cp.schedules:loongtrain",
    implementation="longca_cp.loongtrain:LoongTrain",
    transports=_TRANSPORTS,
)


@hookimpl
def provide_cp_strategy() -> tuple[StrategyManifest, ...]:
    """All five strategies."""
    return ULYSSES, RING_P2P, RING_ALL_GATHER, USP, LOONGTRAIN
