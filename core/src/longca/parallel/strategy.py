"""The contract of a context-parallel strategy's implementation: plan, forward, backward, on local shards.

Shapes: q, out and their gradients [Tl, Hq, D], k, v and theirs [Tl, Hkv, D], lse [Hq, Tl], where Tl are the tokens that
the layout gives this rank. All ranks of the mesh call the same methods in the same order.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from longca.errors import RequestError
from longca.kernels.base import Kernel
from longca.manifests import Layout, Problem, StrategyManifest, Transport

__all__ = ["Kept", "Strategy", "StrategyPlan", "constructed", "moved_by", "transport_of"]

#: A list for the tensors that a forward keeps for its backward, or None.
Kept = list[Tensor] | None


class StrategyPlan(Protocol):
    """A problem made ready for one rank: the kernel plan of every step, and its moves. Every layer reuses it."""

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the mask's metadata on this rank's device, over all of its steps."""


class Strategy(Protocol):
    """A strategy on a mesh. It keeps nothing between calls but its process groups.

    The class of a manifest with several transports takes `transport`, a `longca.Transport`, too: `Class(mesh,
    transport=...)`. It gets `auto` if the caller leaves the choice to the strategy. Its instances have the attribute
    `transports`: the transport of each axis, in the manifest's order.
    """

    def __init__(self, mesh: DeviceMesh) -> None: ...

    def plan(self, problem: Problem, layout: Layout, kernel: Kernel) -> StrategyPlan:
        """Plans all of this rank's steps. `longca.manifests.resolve.step_problems` has their problems.

        `longca.prefetch` plans on a side thread. So a plan with a collective, such as memory that ranks share, calls
        `longca.kernels.ahead.check_not_ahead` before it, and then the call plans. A plan can avoid that: it leaves the
        collective to the first forward.

        Args:
            problem: The problem of all ranks together, on the global mask.
            layout: This strategy's layout for the problem and the mesh.
            kernel: The kernel that computes the steps.
        """

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: StrategyPlan, *, kept: Kept = None, sinks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of all ranks' tokens. Each rank gives and gets its own tokens.

        Args:
            q: [Tl, Hq, D].
            k: [Tl, Hkv, D].
            v: [Tl, Hkv, D].
            plan: The plan.
            kept: A list for tensors that the backward would otherwise exchange again. A strategy may leave it empty.
                None in a forward without a backward.
            sinks: A logit for each query head, [Hq], or None. `longca.kernels.sinks.add_sinks` puts them into the
                results of the whole softmax, before these are kept.

        Returns:
            out [Tl, Hq, D] in q's dtype, and lse [Hq, Tl].
        """

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: StrategyPlan,
        *,
        kept: Kept = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of this rank's q, k and v.

        Args:
            dout: Gradient of the output: [Tl, Hq, D].
            q: [Tl, Hq, D]. This and the next four arguments are not read if `kept` has tensors.
            k: [Tl, Hkv, D].
            v: [Tl, Hkv, D].
            out: The forward's output.
            lse: The forward's log-sum-exp.
            plan: The forward's plan, made for the direction `backward`.
            kept: The tensors that the forward kept, if it got a list.
        """


def transport_of(asked: Transport | str, manifest: StrategyManifest) -> Transport:
    """The transport that a strategy is constructed with. `auto` is the only transport of a strategy that lists one.

    Raises:
        RequestError: There is no such transport, or the strategy does not list it.
    """
    try:
        transport = Transport(asked)
    except ValueError:
        raise RequestError(f"transport is {asked!r}; give {', '.join(Transport)}") from None
    listed = manifest.transports
    if transport is Transport.AUTO:
        return transport if len(listed) > 1 else listed[0]
    if transport not in listed:
        raise RequestError(
            f"transport={str(transport)!r} was asked for, and {manifest.name} moves tensors by {', '.join(listed)} "
            f"alone; give {' or '.join(listed)}, auto, or another strategy"
        )
    return transport


def constructed(made_by: Any, manifest: StrategyManifest, mesh: DeviceMesh, transport: Transport) -> Any:
    """A strategy of a class on a mesh. The constructor gets the transport if the manifest lists several."""
    return made_by(mesh, transport=transport) if len(manifest.transports) > 1 else made_by(mesh)


def moved_by(strategy: Any, manifest: StrategyManifest) -> dict[str, Transport]:
    """The transport that moves the tensors of each axis of a constructed strategy."""
    taken = getattr(strategy, "transports", manifest.transports * len(manifest.axes))
    return dict(zip(manifest.axes, taken, strict=True))
