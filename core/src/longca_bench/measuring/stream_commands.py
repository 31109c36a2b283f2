"""Commands of a judge to a worker about a stream of masks, beside those that every worker knows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from longca.manifests import Transport
from longca.masks import Mask
from longca_bench.measuring.arena import Where
from longca_bench.suites.meshes import MeshAxes

__all__ = ["RunStream", "StreamSetting", "TakeStream", "Way"]


class Way(StrEnum):
    """The way in which a step gets its plan."""

    #: The plan is there, as for a mask that never changes.
    FIXED = "fixed"
    #: The step plans.
    FRESH = "fresh"
    #: `longca.prefetch` plans during the step before.
    PREFETCHED = "prefetched"


@dataclass(frozen=True)
class StreamSetting:
    """The calls of a stream, apart from masks and tensors.

    Attributes:
        kernel: Name of the kernel or pair.
        layers: Calls of attention in a step.
        allow_unverified: Whether an offer may run that nobody verified on the device.
        strategy: Name of the strategy, or None on one device.
        placement: The placement of tokens on ranks, or None on one device.
        mesh: Ranks along each axis. Empty on one device.
        transport: The way to move tensors between ranks.
    """

    kernel: str
    layers: int
    allow_unverified: bool
    strategy: str | None = None
    placement: str | None = None
    mesh: MeshAxes = ()
    transport: Transport = Transport.AUTO


@dataclass(frozen=True)
class TakeStream:
    """Masks and tensors of steps to come, which are not timed yet.

    Attributes:
        setting: The calls.
        way: The way in which steps get their plans.
        masks: A mask for each step, and the mask of the step after them.
        tensors: q, k, v and dout of each step.
    """

    setting: StreamSetting
    way: Way
    masks: tuple[Mask, ...]
    tensors: tuple[dict[str, Where], ...]


@dataclass(frozen=True)
class RunStream:
    """The steps to make and to time.

    Attributes:
        landing: Where the results of each step go: out, lse, dq, dk and dv.
    """

    landing: tuple[dict[str, Where], ...]
