"""attention: any kernel as a differentiable function, also under torch.compile.

The kernel runs in one of two ways with the same results: directly, which takes a fraction of the host time, or
inside a custom operator that a compiler can trace around (`longca.kernels.operators`). Both save the same tensors for
the backward, so that a checkpoint may compute a forward again in the other way. The mask is planned at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import _C, Tensor
from torch.autograd import forward_ad

from longca import plugins
from longca.errors import LongCAError, RequestError, UnsupportedError
from longca.kernels import operators as operators  # registers torch.ops.longca
from longca.kernels.base import check_inputs, check_mask, in_given_dtypes, on_device_of
from longca.kernels.planned import Planned, Settings, planned, problem_of
from longca.kernels.sinks import check_numbers, check_sinks
from longca.manifests import Layout, Transport
from longca.manifests.problem import check_softcap
from longca.masks import Mask

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["attend_on_device", "attention", "check_kernel", "check_mesh", "check_settings", "check_without_strategy"]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    kernel: str = "auto",
    softmax_scale: float | None = None,
    softcap: float | None = None,
    deterministic: bool = False,
    allow_unverified: bool = False,
    return_lse: bool = False,
    sinks: Tensor | None = None,
    strategy: str | None = None,
    mesh: DeviceMesh | None = None,
    placement: str | Layout = "auto",
    transport: Transport | str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of q to k and v under a mask, differentiable in all three, and in sinks.

    The mask is planned at its first use. Later calls reuse the plan, in other layers too, so hold on to the mask while
    you use it. A mask that changes from step to step compiles once, not once a mask. The computation is in the tensors'
    dtype, also under torch.autocast.

    Under a strategy, the tensors are this rank's shards of all tokens, and so are the results. `longca.layout` says
    which tokens these are. All ranks of the mesh make the same calls in the same order. Under torch.compile such a call
    is a break in the graph.

    Args:
        q: Queries: [Tq, Hq, D].
        k: Keys: [Tk, Hkv, D].
        v: Values: [Tk, Hkv, Dv]. Another width than that of q and k needs a kernel that takes both.
        mask: The keys that each query sees: Tq × Tk.
        kernel: Name of a kernel, or of a pair such as `fa3+fa4`: the forward of one and the backward of the other.
            `auto` takes the valid kernel or pair with the least predicted time, or else the first valid kernel
            (`longca_advice.auto_kernel` has the order). It logs the choice and its reason.
        softmax_scale: Factor on the scores. None for 1/√D.
        softcap: Bound c of the scaled scores s, which become c·tanh(s/c) before the mask, as in Gemma 2. None for no
            bound.
        deterministic: Take only an offer whose results are bit-identical from run to run.
        allow_unverified: Take an offer too that nobody verified on this device, if no verified offer of the kernel
            covers the problem. It is tried on a small call before its first use in the process. `longca verify
            --unverified` tries far more, and stores the verdict.
        return_lse: Return the log-sum-exp too.
        sinks: A logit for each query head: [Hq]. It takes its share of the softmax of each query that sees a key, and
            has no value, as in gpt-oss. −∞ stands for none. Computed with every kernel whose backward takes an external
            log-sum-exp. On a GPU the numbers are checked at the first call with the tensor. Under a strategy, all ranks
            give the same sinks, and each gets the gradient of its own queries, to be summed like those of all weights.
        strategy: Name of a context-parallel strategy. None for one device. `auto` takes the strategy with the least
            predicted time on the mesh (`longca_advice.auto_layout`), or the strategy of a layout given as placement.
        mesh: The device mesh that the strategy runs on, with dims named as its axes.
        placement: The way to place tokens on ranks: a placement's name, `auto` for the least predicted time with the
            kernel, or a layout from `longca.layout`.
        transport: The way in which the strategy moves tensors: `collectives`, or `copy_engine` for writes into the
            memory of peers. `auto` leaves the choice to the strategy, which logs it for each axis of the mesh.

    Returns:
        out [Tq, Hq, D] in q's dtype. With return_lse also lse [Hq, Tq], which carries no gradient. Sinks count in it.

    Raises:
        RequestError: Shapes, dtypes or devices that do not fit one another or the mask. Sinks that are NaN. Or a mesh,
            a placement or a transport without a strategy. Or a transport that the strategy or the machine lacks.
        UnknownNameError: Nobody provides the kernel or the strategy.
        UnsupportedError: No offer covers the problem. The message gives the reasons and the valid kernels. Or a
            tensor has a tangent of forward-mode differentiation.
        VerificationError: Only an unverified offer covers the problem, and it is wrong on the device.
    """
    if strategy is not None:
        settings = Settings(kernel, softmax_scale, softcap, deterministic, allow_unverified, sinks is not None)
        result = _in_parallel(q, k, v, sinks, mask, strategy, mesh, placement, transport, settings)
        return result if return_lse else result[0]
    check_mask(mask)
    check_without_strategy(mesh, placement, transport)
    out, lse = attend_on_device(q, k, v, mask, kernel, softmax_scale, softcap, deterministic, allow_unverified, sinks)
    return (out, lse) if return_lse else out


def attend_on_device(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | Tensor,
    kernel: str = "auto",
    softmax_scale: float | None = None,
    softcap: float | None = None,
    deterministic: bool = False,
    allow_unverified: bool = False,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """out and lse of `attention` without a strategy. The mask may be its key in a tensor: int64 [], on the CPU."""
    check_inputs(q, k, v)
    check_sinks(sinks, q)
    given = (q, k, v) if sinks is None else (q, k, v, sinks)
    if forward_ad._current_level >= 0:
        _check_no_tangent(*given)
    check_settings(kernel, softmax_scale, softcap, deterministic, allow_unverified)
    training = _is_training(q, k, v, sinks)
    if isinstance(mask, Mask) and _is_direct(*given):
        if sinks is not None:
            check_numbers(sinks)
        settings = Settings(kernel, softmax_scale, softcap, deterministic, allow_unverified, sinks is not None)
        return _attend(q, k, v, sinks, mask, settings, training)
    key = torch.from_numpy(mask.key_array) if isinstance(mask, Mask) else mask
    transformed = not torch.compiler.is_compiling() and _C._are_functorch_transforms_active()
    operator: Any = operators.TransformedAttention.apply if transformed else torch.ops.longca.attention
    out, lse = operator(q, k, v, key, kernel, softmax_scale, softcap, deterministic, allow_unverified, training, sinks)
    return out, lse.detach()


def _is_training(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> bool:
    wanted = q.requires_grad or k.requires_grad or v.requires_grad or (sinks is not None and sinks.requires_grad)
    return torch.is_grad_enabled() and wanted


def _is_direct(*tensors: Tensor) -> bool:
    """Whether a function of these tensors, which are on one device, may run without the dispatcher.

    It may not under a compiler, a tracer, functorch, or a mode that watches operators. Neither may it if a tensor is a
    subclass, a fake or a negated view, or lies on another device than a CPU or a CUDA device.
    """
    if (
        torch.compiler.is_compiling()
        or _C._len_torch_dispatch_stack()
        or _C._len_torch_function_stack()
        or _C._are_functorch_transforms_active()
        or _C._is_tracing()
        or not (tensors[0].is_cuda or tensors[0].is_cpu)
    ):
        return False
    for x in tensors:  # a generator would take twice as long
        plain = type(x) in _PLAIN and not x.is_neg()
        if not plain:
            return False
    return True


_PLAIN = (Tensor, torch.nn.Parameter)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, mask: Mask, settings: Settings, training: bool
) -> tuple[Tensor, Tensor]:
    """out [Tq, Hq, Dv] and lse [Hq, Tq], which carries no gradient. See `longca.attention`."""
    ready = planned(mask, q, k, v, settings, training)
    if not training:
        return ready.forward(q, k, v, sinks)
    out, lse = LongCAAttention.apply(q, k, v, sinks, ready, settings)  # type: ignore[no-untyped-call]
    return out, lse


class LongCAAttention(torch.autograd.Function):
    """A kernel's forward and backward as one differentiable function."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, ready: Planned, settings: Settings
    ) -> tuple[Tensor, Tensor]:
        out, lse = ready.forward(q, k, v, sinks)
        ctx.ready, ctx.settings = ready, settings[:5]
        ctx.save_for_backward(q, k, v, out, lse, ready.key, sinks)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, _dlse: None) -> tuple[Tensor | None, ...]:
        *saved, sinks = ctx.saved_tensors
        if dout is None:  # what follows has no gradient
            dout = torch.zeros_like(saved[3])
        # The operator says what is wrong with a gradient of a gradient.
        if torch.is_grad_enabled() or not _is_direct(dout):
            *grads, dsinks = torch.ops.longca.attention_backward(dout, *saved, *ctx.settings, sinks)
        else:
            *grads, dsinks = ctx.ready.backward(dout, *saved[:-1], sinks if ctx.needs_input_grad[3] else None)
        return (*grads, None if sinks is None else dsinks, None, None)


def check_without_strategy(mesh: object, placement: object, transport: object) -> None:
    """Raises RequestError if a call on one device was given an argument that belongs to strategies."""
    if mesh is not None or placement != "auto" or transport != "auto":
        what = "mesh" if mesh is not None else "placement" if placement != "auto" else "transport"
        raise RequestError(f"a {what} without a strategy; give strategy= one of those that `longca plugins` lists")


def check_mesh(strategy: str, mesh: object) -> DeviceMesh:
    """The device mesh of a call under a strategy, or RequestError. UnknownNameError if nobody provides the strategy."""
    from torch.distributed.device_mesh import DeviceMesh

    if strategy != "auto":
        plugins.registry().strategy(strategy)  # an unknown one is refused as such, whatever the mesh
    if not isinstance(mesh, DeviceMesh):
        given = "" if mesh is None else f", and mesh is a {type(mesh).__name__}"
        raise RequestError(
            f"{strategy} runs on a device mesh{given}; make one with init_device_mesh and give it as mesh="
        )
    return mesh


def check_settings(
    kernel: object,
    softmax_scale: object,
    softcap: object = None,
    deterministic: object = False,
    allow_unverified: object = False,
    sinks: object = False,
) -> None:
    """Raises RequestError if the kernel is no name, the scale or cap no number, or a flag neither True nor False."""
    if not isinstance(kernel, str):
        raise RequestError(f"kernel is {kernel!r}; give a kernel's name, or auto")
    if softmax_scale is not None and not isinstance(softmax_scale, (int, float)):
        raise RequestError(f"softmax_scale is {softmax_scale!r}; give a number above 0, or None for 1/√D")
    check_softcap(softcap)
    for name, flag in (("deterministic", deterministic), ("allow_unverified", allow_unverified), ("sinks", sinks)):
        if not isinstance(flag, bool):
            raise RequestError(f"{name} is {flag!r}; give True or False")


def check_kernel(kernel: object) -> None:
    """Raises RequestError if the kernel of calls to come is no name, and UnknownNameError if nobody provides it."""
    check_settings(kernel, None)
    if isinstance(kernel, str) and kernel != "auto":
        plugins.registry().manifests(kernel)


def _check_no_tangent(*tensors: Tensor) -> None:
    """Refuses forward-mode differentiation through attention. Transforms hide who has a tangent."""
    if _C._are_functorch_transforms_active() or any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise UnsupportedError(
            "attention was called under forward-mode differentiation (torch.func.jvp, jacfwd, hessian or make_dual), "
            "and kernels have no forward-mode derivative, so that the tangent would be lost; take gradients by "
            "backward(), or compute what has no tangent outside"
        )


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _in_parallel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    mask: Mask,
    strategy: str,
    mesh: DeviceMesh | None,
    placement: str | Layout,
    transport: Transport | str,
    settings: Settings,
) -> tuple[Tensor, Tensor]:
    from longca.parallel.agreement import Ranks
    from longca.parallel.attention import ParallelCall, parallel_attention

    try:
        mesh = check_mesh(strategy, mesh)
        check_mask(mask)
        check_inputs(q, k, v)
        check_sinks(sinks, q)
        given = (q, k, v) if sinks is None else (q, k, v, sinks)
        if forward_ad._current_level >= 0:
            _check_no_tangent(*given)
        check_settings(*settings)
        if sinks is not None:
            check_numbers(sinks)
        training = _is_training(q, k, v, sinks)
        problem = problem_of(q, k, v, mask, settings, training)
    except LongCAError as error:
        if mesh is not None and hasattr(mesh, "get_coordinate") and mesh.get_coordinate() is not None:
            Ranks.of(mesh).share(error)  # others may be waiting to compare this call
        raise
    with on_device_of(q), in_given_dtypes(q):
        call = ParallelCall(problem, strategy, mesh, settings.kernel, placement, transport)
        return parallel_attention(q, k, v, call, sinks)
