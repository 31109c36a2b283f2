"""Plans and placements of calls to come, which the side thread of `longca.prefetch` makes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from longca.errors import RequestError
from longca.kernels.ahead import NotAheadError, Prefetch, ask
from longca.kernels.base import in_given_dtypes, on_device_of
from longca.manifests import Layout, Problem
from longca.masks import Mask
from longca.parallel.layouts import placed_together
from longca.parallel.ready import Ready, about_call, make_ready, ready_of, strategy_on, words_of
from longca.parallel.transport import Transport
from longca_advice.auto_layout import AUTO

__all__ = ["place_ahead", "plan_ahead"]


def plan_ahead(
    like: Tensor,
    problem: Problem,
    strategy: str,
    mesh: DeviceMesh,
    kernel: str,
    placement: str | Layout,
    transport: Transport | str,
) -> Prefetch:
    """Asks the side thread for everything of a later call that this rank makes alone.

    The ranks' agreement on `auto` is left to the call. A named strategy is constructed here, because its constructor
    may start collectives. The call plans too, if `auto` takes a strategy that is not there yet, or if the strategy's
    plan comes to a collective. The layout, the choices and the cut of the mask are ready in any case.

    Args:
        like: A tensor of the call's dtype and device.
        problem: As in `parallel_attention`, like the other arguments.
        strategy: Name of the strategy, or `auto`.
        mesh: The device mesh.
        kernel: Name of the kernel or pair, or `auto`.
        placement: Name of the placement, `auto`, or a layout.
        transport: The way to move tensors, or `auto`.
    """
    about = about_call(problem, strategy, mesh, kernel, placement, transport)
    if strategy != AUTO:
        strategy_on(strategy, mesh, transport)

    def make() -> Ready | None:
        if (found := ready_of(mesh).find(problem.mask, about)) is not None:
            return found
        words_of(problem, strategy, kernel, placement, transport)  # the mask keeps its digest for the call
        with on_device_of(like), in_given_dtypes(like), suppress(NotAheadError):
            return make_ready(problem, strategy, mesh, kernel, placement, transport)
        return None

    return ask((problem.concrete_mask.key, about), make, like.device)


def place_ahead(
    like: Tensor,
    problem: Problem,
    weighed: Sequence[tuple[Mask, float]],
    strategy: str,
    mesh: DeviceMesh,
    kernel: str,
    placement: str | Layout,
) -> Prefetch:
    """Asks the side thread for the placement that several masks share. `longca.layout` then finds it.

    The ranks' agreement on it is left to `longca.layout`.

    Args:
        like: A tensor on the device.
        problem: The problem of the first mask.
        weighed: The masks with their weights.
        strategy: Name of the strategy, or `auto`.
        mesh: The device mesh.
        kernel: Name of the kernel or pair, or `auto`.
        placement: Name of the placement, or `auto`.

    Raises:
        RequestError: The placement is a layout, which places one mask.
    """
    if isinstance(placement, Layout):
        raise RequestError("a layout places one mask, and several were given; give a placement's name, or auto")

    def make() -> None:
        placed_together(problem, weighed, strategy, mesh, kernel, placement, alone=True)

    return ask(object(), make, like.device)  # the caches know what was made before
