"""Plans and placements of calls to come, which the side thread of `longca.prefetch` makes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from torch import Tensor

from longca.errors import RequestError
from longca.kernels.ahead import NotAheadError, Prefetch, ask
from longca.kernels.base import in_given_dtypes, on_device_of
from longca.manifests import Layout
from longca.masks import Mask
from longca.parallel.calls import calls_on
from longca.parallel.layouts import placed_together
from longca.parallel.ready import ParallelCall, Ready, make_ready, strategy_on
from longca_advice.auto_layout import AUTO

__all__ = ["place_ahead", "plan_ahead"]


def plan_ahead(like: Tensor, call: ParallelCall) -> Prefetch:
    """Asks the side thread for everything of a later call that this rank makes alone.

    The ranks' agreement on `auto` is left to the call. A named strategy is constructed here, because its constructor
    may start collectives. The call plans too, if `auto` takes a strategy that is not there yet, or if the strategy's
    plan comes to a collective. The layout, the choices and the cut of the mask are ready in any case.

    Args:
        like: A tensor of the call's dtype and device.
        call: The later call.
    """
    mask, about = call.problem.mask, call.about()
    if call.strategy != AUTO:
        strategy_on(call.strategy, call.mesh, call.transport)

    def make() -> Ready | None:
        if (found := calls_on(call.mesh).latest.find(mask, about)) is not None:
            return found.ready
        call.words()  # the mask keeps its digest for the call
        with on_device_of(like), in_given_dtypes(like), suppress(NotAheadError):
            return make_ready(call)
        return None

    return ask((call.problem.concrete_mask.key, about), make, like.device)


def place_ahead(like: Tensor, weighed: Sequence[tuple[Mask, float]], call: ParallelCall) -> Prefetch:
    """Asks the side thread for the placement that several masks share. `longca.layout` then finds it.

    The ranks' agreement on it is left to `longca.layout`.

    Args:
        like: A tensor on the device.
        weighed: The masks with their weights.
        call: A call with the first mask.

    Raises:
        RequestError: The placement is a layout, which places one mask.
    """
    problem, strategy, mesh, kernel, placement, _ = call
    if isinstance(placement, Layout):
        raise RequestError("a layout places one mask, and several were given; give a placement's name, or auto")

    def make() -> None:
        placed_together(problem, weighed, strategy, mesh, kernel, placement, alone=True)

    return ask(object(), make, like.device)  # the caches know what was made before
