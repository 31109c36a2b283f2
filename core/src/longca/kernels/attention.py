"""attention: any kernel as a differentiable function, also under torch.compile.

The kernel runs inside a custom operator whose arguments are tensors and plain numbers, so that a compiler can trace
around it: the mask travels as its key, in a tensor of one number, and is planned at its first use.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longca import plugins
from longca.errors import RequestError
from longca.kernels.base import Kernel, Plan, check_inputs, check_mask, device_of, in_given_dtypes
from longca.kernels.buffers import on_device_of
from longca.kernels.choice import choose, log
from longca.manifests import Layout, Problem
from longca.masks import Mask

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["attention"]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    kernel: str = "auto",
    softmax_scale: float | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
    strategy: str | None = None,
    mesh: DeviceMesh | None = None,
    placement: str | Layout = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of q to k and v under a mask, differentiable in all three.

    The mask is planned at its first use and the plan reused, by other layers too; hold on to the mask while you use
    it. A mask that changes from step to step compiles once, not once a mask. Under torch.autocast it is computed in the
    tensors' dtype all the same.

    With a strategy the tensors are this rank's shards of all tokens, and so are the results; `longca.layout` says which
    tokens they are. All ranks of the mesh make the same calls in the same order. Under torch.compile such a call is a
    break in the graph.

    Args:
        q: Queries: [Tq, Hq, D].
        k: Keys: [Tk, Hkv, D].
        v: Values: [Tk, Hkv, D].
        mask: Which keys each query sees; Tq × Tk.
        kernel: Name of a kernel, or of a pair such as `fa3+fa4`: the forward of one and the backward of the other.
            `auto` takes the valid kernel or pair with the least predicted time, or else the first valid kernel
            (`longca.kernels.choice` has the order), and logs the choice and its reason.
        softmax_scale: Factor on the scores; None for 1/√D.
        deterministic: Take only an offer whose results are bit-identical from run to run.
        return_lse: Return the log-sum-exp too.
        strategy: Name of a context-parallel strategy; None for one device. `auto` takes the strategy that is predicted
            quickest on the mesh (`longca.parallel.sharing` says how), or that of the layout given as placement.
        mesh: The device mesh it runs on, with dims named as its axes.
        placement: How the strategy places tokens on ranks: a placement's name; `auto` for what is predicted quickest
            with the kernel; or what `longca.layout` returned, which leaves no doubt.

    Returns:
        out [Tq, Hq, D] in q's dtype; with return_lse also lse [Hq, Tq], which carries no gradient.

    Raises:
        RequestError: Shapes, dtypes or devices that do not fit one another or the mask; a mesh or a placement without
            a strategy.
        UnknownNameError: Nobody provides the kernel or the strategy.
        UnsupportedError: No offer covers the problem; the message gives the reasons and the kernels that are valid.
    """
    check_mask(mask)
    check_inputs(q, k, v)
    _check_settings(kernel, softmax_scale)
    training = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if strategy is not None:
        result = _in_parallel(q, k, v, mask, strategy, mesh, kernel, placement, softmax_scale, deterministic, training)
        return result if return_lse else result[0]
    if mesh is not None:
        raise RequestError("a mesh without a strategy; give strategy= one of those that `longca plugins` lists")
    if placement != "auto":
        raise RequestError("a placement without a strategy; give strategy= one of those that `longca plugins` lists")
    key = torch.from_numpy(mask.key_array)
    out, lse = torch.ops.longca.attention(q, k, v, key, kernel, softmax_scale, deterministic, training)
    return (out, lse.detach()) if return_lse else out


def _check_settings(kernel: object, softmax_scale: object) -> None:
    """Checks what the operator's schema would refuse in its own words.

    Raises:
        RequestError: The kernel is no name, or the scale no number.
    """
    if not isinstance(kernel, str):
        raise RequestError(f"kernel is {kernel!r}; give a kernel's name, or auto")
    # A compiler knows plain numbers by their types; NumPy's and others convert themselves.
    if softmax_scale is not None and not (
        isinstance(softmax_scale, (int, float)) or hasattr(softmax_scale, "__float__")
    ):
        raise RequestError(f"softmax_scale is {softmax_scale!r}; give a number above 0, or None for 1/√D")


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _in_parallel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    strategy: str,
    mesh: DeviceMesh | None,
    kernel: str,
    placement: str | Layout,
    softmax_scale: float | None,
    deterministic: bool,
    training: bool,
) -> tuple[Tensor, Tensor]:
    from torch.distributed.device_mesh import DeviceMesh

    from longca.parallel.attention import parallel_attention

    if strategy != "auto":
        plugins.registry().strategy(strategy)  # an unknown one is refused as such, whatever the mesh
    if not isinstance(mesh, DeviceMesh):
        given = "" if mesh is None else f", and mesh is a {type(mesh).__name__}"
        raise RequestError(
            f"{strategy} runs on a device mesh{given}; make one with init_device_mesh and give it as mesh="
        )
    problem = _problem(q, k, mask, softmax_scale, deterministic, training)
    with on_device_of(q), in_given_dtypes(q):
        return parallel_attention(q, k, v, problem, strategy, mesh, kernel, placement)


@torch.library.custom_op("longca::attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key: Tensor,
    kernel: str,
    softmax_scale: float | None,
    deterministic: bool,
    training: bool,
) -> tuple[Tensor, Tensor]:
    with on_device_of(q), in_given_dtypes(q):
        implementation, plan = _PLANS.get(q, k, v, int(key), kernel, softmax_scale, deterministic, training)
        out, lse = implementation.forward(q, k, v, plan)
    return out.contiguous(), lse.contiguous()


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_settings: Any) -> tuple[Tensor, Tensor]:
    lse_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(q.shape), q.new_empty((q.shape[1], q.shape[0]), dtype=lse_dtype)


@torch.library.custom_op("longca::attention_backward", mutates_args=())
def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    key: Tensor,
    kernel: str,
    softmax_scale: float | None,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    with on_device_of(q), in_given_dtypes(q):
        implementation, plan = _PLANS.get(q, k, v, int(key), kernel, softmax_scale, deterministic, training=True)
        dq, dk, dv = implementation.backward(dout.contiguous(), q, k, v, out, lse, plan)
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


@_backward.register_fake
def _(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *_settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, key, *ctx.settings, _training = inputs
    ctx.save_for_backward(q, k, v, *output, key)


def _differentiate(ctx: Any, dout: Tensor, _dlse: Tensor) -> tuple[Tensor | None, ...]:
    grads = torch.ops.longca.attention_backward(dout, *ctx.saved_tensors, *ctx.settings)
    return (*grads, None, None, None, None, None)


_forward.register_autograd(_differentiate, setup_context=_save)


class _Plans:
    """Plans made, the most recently used last; each holds its mask, and the oldest goes when there are too many."""

    _MOST = 64

    def __init__(self) -> None:
        self._plans: OrderedDict[tuple[Any, ...], tuple[Kernel, Plan]] = OrderedDict()
        self._lock = threading.Lock()

    def get(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: int,
        kernel: str,
        softmax_scale: float | None,
        deterministic: bool,
        training: bool,
    ) -> tuple[Kernel, Plan]:
        """The kernel and plan for some tensors, made if need be."""
        key = (mask, kernel, softmax_scale, deterministic, training, q.shape, k.shape, q.dtype, q.device)
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
        whole = Mask.by_key(mask)
        if (q.shape[0], k.shape[0]) != (whole.seqlen_q, whole.seqlen_k):
            raise RequestError(
                f"q has {q.shape[0]} tokens and k {k.shape[0]}, but the mask is {whole.seqlen_q} × {whole.seqlen_k}; "
                "build the mask for the tensors' lengths"
            )
        problem = _problem(q, k, whole, softmax_scale, deterministic, training)
        made = self._make(kernel, problem)
        with self._lock:
            self._plans[key] = made
            if len(self._plans) > self._MOST:
                self._plans.popitem(last=False)
        return made

    def _make(self, name: str, problem: Problem) -> tuple[Kernel, Plan]:
        registry = plugins.registry()
        if name == "auto":
            choice = choose(problem, registry)
            log(choice)
            name = choice.kernel
        else:
            verdict = registry.resolve(name, problem)
            if not verdict:
                verdict.check(tuple(other for other in registry.kernels if registry.resolve(other, problem)))
        implementation: Kernel = registry.load(name)
        return implementation, implementation.plan(problem)


def _problem(
    q: Tensor, k: Tensor, mask: Mask, softmax_scale: float | None, deterministic: bool, training: bool
) -> Problem:
    return Problem(
        mask=mask,
        heads_q=q.shape[1],
        heads_kv=k.shape[1],
        head_dim=q.shape[2],
        dtype=str(q.dtype).removeprefix("torch."),  # type: ignore[arg-type]  # Problem checks it
        device=device_of(q),
        direction="backward" if training else "forward",
        softmax_scale=softmax_scale,
        deterministic=deterministic,
    )


_PLANS = _Plans()
