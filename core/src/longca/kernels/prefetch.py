"""prefetch: everything that a later call does with its mask, done by a side thread while this step runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from longca import plugins
from longca.errors import RequestError
from longca.kernels.ahead import Prefetch
from longca.kernels.attention import check_mesh, check_settings, check_without_strategy
from longca.kernels.base import check_inputs, check_mask, torch_dtype
from longca.kernels.planned import Settings, plan_ahead, problem_of
from longca.manifests import Layout, Transport
from longca.masks import Mask
from longca.shared_layouts import check_weighted

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["prefetch"]


def prefetch(
    mask: Mask | Sequence[tuple[Mask, float]],
    *,
    heads: tuple[int, int],
    head_dim: int = 128,
    head_dim_v: int | None = None,
    dtype: torch.dtype | str = torch.bfloat16,
    device: torch.device | str | None = None,
    training: bool = True,
    kernel: str = "auto",
    softmax_scale: float | None = None,
    softcap: float | None = None,
    deterministic: bool = False,
    allow_unverified: bool = False,
    sinks: bool = False,
    strategy: str | None = None,
    mesh: DeviceMesh | None = None,
    placement: str | Layout = "auto",
    transport: Transport | str = "auto",
) -> Prefetch:
    """Plans a mask ahead of its first `longca.attention`, which then finds the plan.

    A side thread chooses the kernel and the placement, makes the layout, and plans. It takes masks in the order of the
    calls. The arguments are those of the later call. A call with other arguments plans for itself. A call that comes
    too early waits for the plan. At most 64 plans wait for their calls, and a further one drops the oldest.

    Under a strategy, all ranks make the same calls in the same order. The side thread does only what its rank does
    alone. The call that needs the plan starts the collectives: with `auto`, the ranks agree there. The constructor of a
    named strategy may start collectives too, so the first request on a mesh calls it at once.

    Several masks, each with a weight as in `longca.layout`, are placed together. `longca.layout` then finds the
    placement, and their plans are left to the calls.

    Args:
        mask: The mask. Or several masks of the same tokens: [(mask, weight), ...].
        heads: Query heads and KV heads.
        head_dim: Head dimension of q and k.
        head_dim_v: Head dimension of v. None for that of q and k.
        dtype: Data type of q, k and v.
        device: Their device. None for the current device of the mesh.
        training: Whether a gradient will be asked for.
        kernel: As in `longca.attention`, like all arguments below.
        softmax_scale: Factor on the scores.
        softcap: Bound on the scaled scores.
        deterministic: Whether only an offer with bit-identical results is taken.
        allow_unverified: Whether an offer is taken too that nobody verified on the device.
        sinks: Whether the call has sinks.
        strategy: Name of a context-parallel strategy, or `auto`.
        mesh: The device mesh of the strategy.
        placement: The way to place tokens on ranks.
        transport: The way in which the strategy moves tensors.

    Returns:
        A handle. `done()` says whether planning has ended, and `wait()` waits for its end. Both are optional. An error
        of planning is raised by `wait()`, and by the call.

    Raises:
        RequestError: An argument does not fit, there is neither a device nor a mesh, or several masks have no strategy.
        UnknownNameError: Nobody provides the strategy.
    """
    weighed = check_weighted(mask) if isinstance(mask, (tuple, list)) else ()
    first: Mask = weighed[0][0] if weighed else mask  # type: ignore[assignment]  # it is checked
    check_mask(first)
    check_settings(kernel, softmax_scale, softcap, deterministic, allow_unverified, sinks)
    plugins.registry()  # made here, so that no two threads make it
    if strategy is not None:
        mesh = check_mesh(strategy, mesh)
        device = mesh.device_type if device is None else device
    else:
        check_without_strategy(mesh, placement, transport)
    q, k, v = _stand_ins(first, heads, (head_dim, head_dim_v), dtype, device)
    settings = Settings(kernel, softmax_scale, softcap, deterministic, allow_unverified, sinks)
    if mesh is None or strategy is None:
        if weighed:
            raise RequestError("several masks share a placement under a strategy; give strategy= and mesh=")
        return plan_ahead(first, q, k, v, settings, training)
    from longca.parallel.attention import ParallelCall, prefetch_parallel, prefetch_placement

    call = ParallelCall(problem_of(q, k, v, first, settings, training), strategy, mesh, kernel, placement, transport)
    return prefetch_placement(q, weighed, call) if weighed else prefetch_parallel(q, call)


def _stand_ins(
    mask: Mask,
    heads: tuple[int, int],
    head_dims: tuple[int, int | None],
    dtype: torch.dtype | str,
    device: torch.device | str | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tensors of the shapes of q, k and v, with memory for one number."""
    if device is None:
        raise RequestError("prefetch was given neither a device nor a mesh; give device= the device of the tensors")
    if not isinstance(heads, (tuple, list)) or len(heads) != 2:
        raise RequestError(f"heads is {heads!r}; give (query heads, KV heads)")
    if not isinstance(device, (str, torch.device)):
        raise RequestError(f"device is {device!r}; give the torch device of the tensors, such as q.device or 'cuda'")
    one = torch.empty(1, dtype=torch_dtype(dtype) if isinstance(dtype, str) else dtype, device=device)
    of_q, of_k = (mask.seqlen_q, heads[0]), (mask.seqlen_k, heads[1])
    dim, dim_v = head_dims[0], head_dims[0] if head_dims[1] is None else head_dims[1]
    q, k, v = (one.expand(*size, width) for size, width in ((of_q, dim), (of_k, dim), (of_k, dim_v)))
    check_inputs(q, k, v)
    return q, k, v
