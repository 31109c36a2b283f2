"""Context parallelism for LongCA: Ulysses, Ring P2P, Ring All-Gather, USP and LoongTrain, under every static mask."""

from __future__ import annotations

from longca.hookspecs import hookimpl
from longca.manifests import StrategyManifest, Transport

__all__ = ["LOONGTRAIN", "RING_ALL_GATHER", "RING_P2P", "ULYSSES", "USP", "provide_cp_strategy"]

#: The placements of strategies with a ring: those of `longca_cp.placement`, which a listing does not import.
_ALL = ("contiguous", "zigzag", "zigzag_document", "balanced", "whole_documents")


def _strategy(
    title: str, arxiv: str, axes: tuple[str, ...], implementation: str, placements: tuple[str, ...] = _ALL
) -> StrategyManifest:
    """A strategy whose name is that of its module, its layout function and its schedule."""
    name = implementation.partition(":")[0]
    return StrategyManifest(
        name=name,
        title=title,
        upstream=f"https://arxiv.org/abs/{arxiv}",
        license="Apache-2.0",
        axes=axes,
        placements=placements,
        layout=f"longca_cp.layouts:{name}",
        memory=f"longca_cp.memory:{name}_memory",
        schedule=f"longca_cp.schedules:{name}",
        implementation=f"longca_cp.{implementation}",
        transports=(Transport.COLLECTIVES, Transport.COPY_ENGINE),
    )


# Every rank of ulysses computes on all tokens, so the placement makes no difference to its work.
ULYSSES = _strategy("Ulysses", "2309.14509", ("ulysses",), "ulysses:Ulysses", ("contiguous",))
RING_P2P = _strategy("Ring P2P", "2310.01889", ("ring",), "ring_p2p:RingP2P")
RING_ALL_GATHER = _strategy("Ring All-Gather", "2407.21783", ("ring",), "ring_all_gather:RingAllGather")
USP = _strategy("USP", "2405.07719", ("ring", "ulysses"), "usp:USP")
LOONGTRAIN = _strategy("LoongTrain", "2406.18485", ("outer", "inner", "heads"), "loongtrain:LoongTrain")


@hookimpl
def provide_cp_strategy() -> tuple[StrategyManifest, ...]:
    """All five strategies."""
    return ULYSSES, RING_P2P, RING_ALL_GATHER, USP, LOONGTRAIN
