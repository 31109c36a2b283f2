"""cudnn: NVIDIA cuDNN's fused attention, through the graphs of its Python frontend.

The backward takes any out and lse as inputs. It forms exp(score − lse) and the row sums of dout · out. So it composes:
out and lse may be those of a larger softmax.

Queries that see nothing, and keys in documents without queries, never reach cuDNN. Their results are filled in
afterwards.

Shapes: q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv], out [Tq, Hq, Dv], lse [Hq, Tq].

Source: the documentation of cudnn-frontend, operations/Attention
(https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longca import Problem
from longca.kernels.ahead import is_ahead
from longca.kernels.base import fill, like_out, torch_device
from longca.manifests import resolve_manifest
from longca.manifests.problem import Direction
from longca.masks import Form
from longca_cudnn import CUDNN
from longca_cudnn.plans import CuDNNPlan, make_plan
from longca_cudnn.specs import OPERANDS, GraphSpec, Uid

if TYPE_CHECKING:
    from longca_cudnn.graphs import Graph
from longca_cudnn.specs import Strides

__all__ = ["MAX_GRAPHS", "CuDNN", "built"]

_ALIGNMENT = 16  # bytes


def strides_of(x: Tensor) -> Strides:
    """The strides of an operand's tokens and heads. A single token or head counts as contiguous."""
    tokens, heads, dim = x.shape
    by_head = dim if heads == 1 else x.stride(1)
    return (heads * dim if tokens == 1 else x.stride(0)), by_head


def readable(x: Tensor, *, ragged: bool) -> Tensor:
    """An input that cuDNN can read: the tensor itself, or a contiguous copy.

    Args:
        x: The input.
        ragged: Whether the graph is ragged.
    """
    bytes_apart = [stride * x.element_size() for stride in strides_of(x)]
    fits = x.stride(2) == 1 and all(apart > 0 and apart % _ALIGNMENT == 0 for apart in bytes_apart)
    in_place = fits and _is_aligned(x) and (x.is_contiguous() or not ragged)
    return x if in_place else x.clone(memory_format=torch.contiguous_format)


def writable(buffer: Tensor | None, like: Tensor) -> Tensor:
    """An output that cuDNN can write: the buffer itself, or a new tensor of `like`'s shape."""
    if buffer is not None and buffer.is_contiguous() and _is_aligned(buffer):
        return buffer
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


def writable_lse(buffer: Tensor | None, heads: int, tokens: int, by_token: bool, device: torch.device) -> Tensor:
    """A log-sum-exp that cuDNN can write: the buffer itself if its layout fits, else a new one.

    Args:
        buffer: A tensor [heads, tokens], or None. A tensor of other sizes does not fit.
        heads: Query heads.
        tokens: Queries.
        by_token: True if the heads of a token are neighbours in memory. False if the tokens of a head are.
        device: The device of a new tensor.

    Returns:
        [heads, tokens], contiguous. If `by_token`, its transpose is contiguous instead.
    """
    if buffer is not None and buffer.shape == (heads, tokens) and _is_aligned(buffer):
        laid_out = buffer.T if by_token else buffer
        if laid_out.is_contiguous():
            return buffer
    shape = (tokens, heads) if by_token else (heads, tokens)
    made = torch.empty(shape, dtype=torch.float32, device=device)
    return made.T if by_token else made


def _is_aligned(x: Tensor) -> bool:
    return x.data_ptr() % _ALIGNMENT == 0


MAX_GRAPHS = 128  # graphs kept. Each has its compiled code.


class CuDNN:
    """cuDNN's fused attention."""

    def plan(self, problem: Problem) -> CuDNNPlan:
        """Puts the mask's documents on the device, and builds the graphs for contiguous tensors, unless it plans ahead.

        Raises:
            UnsupportedError: No offer covers the problem, or cuDNN refuses it.
        """
        offer = resolve_manifest(CUDNN, problem).check().offer
        assert offer is not None, "a valid verdict without a layout has an offer"
        return self.plan_as(problem, offer.form)

    def plan_as(self, problem: Problem, form: Form) -> CuDNNPlan:
        """Plans in a form that the mask admits, even if no offer covers it.

        Raises:
            UnsupportedError: cuDNN refuses the problem.
        """
        plan = make_plan(problem, form)
        # Threads must not share a handle, and the calls use it. So what is planned ahead is built by its first call.
        if plan.batch and not is_ahead():
            device = torch_device(problem.device)
            built(device, plan.packed_spec(Direction.FORWARD))
            if problem.direction == "backward":
                built(device, plan.packed_spec(Direction.BACKWARD))
        return plan

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: CuDNNPlan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v. See `longca.kernels.base.Kernel.forward`."""
        seeing = slice(plan.first_query, None)
        result, is_ragged = writable(out, like_out(q, v)), plan.ragged is not None
        seen = writable_lse(lse, q.shape[1], q.shape[0] - plan.first_query, is_ragged, q.device)
        if plan.batch:
            operands = [*(readable(x, ragged=is_ragged) for x in (q[seeing], k, v)), result[seeing]]
            _run(Direction.FORWARD, plan, operands, seen.T if is_ragged else seen)
        if plan.first_query:
            sums = q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32) if lse is None else lse
            sums[:, seeing] = seen
        else:
            sums = fill(lse, seen)
        if plan.blind_q is not None:
            result.index_fill_(0, plan.blind_q, 0.0)
            sums.index_fill_(1, plan.blind_q, -torch.inf)
        return fill(out, result), sums

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: CuDNNPlan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v. See `longca.kernels.base.Kernel.backward`."""
        seeing = slice(plan.first_query, None)
        buffers = dq, dk, dv
        grads = [writable(buffer, x) for buffer, x in zip(buffers, (q, k, v), strict=True)]
        if plan.batch:
            is_ragged = plan.ragged is not None
            inputs = [readable(x, ragged=is_ragged) for x in (q[seeing], k, v, out[seeing], dout[seeing])]
            sums = (lse.T if is_ragged else lse[:, seeing]).contiguous()
            _run(Direction.BACKWARD, plan, [*inputs, grads[0][seeing], *grads[1:]], sums)
        for grad, blind in zip(grads, (plan.blind_q, plan.blind_k, plan.blind_k), strict=True):
            if blind is not None:
                grad.index_fill_(0, blind, 0.0)
        first, second, third = (fill(buffer, grad) for buffer, grad in zip(buffers, grads, strict=True))
        return first, second, third


def _run(direction: Direction, plan: CuDNNPlan, operands: Sequence[Tensor], lse: Tensor) -> None:
    """Runs the graph on operands in the order of `OPERANDS`. lse is contiguous in the graph's layout."""
    strides = tuple(strides_of(x) for x in operands)
    tensors: dict[int, Tensor] = {Uid.LSE: lse, **dict(zip(OPERANDS[direction], operands, strict=True))}
    if plan.ragged is not None:
        assert plan.lengths_q is not None, "a ragged plan has lengths"
        assert plan.lengths_k is not None, "a ragged plan has lengths"
        tensors |= {Uid.LENGTH_Q: plan.lengths_q, Uid.LENGTH_K: plan.lengths_k}
        tensors[Uid.LSE.offsets] = plan.offsets(Uid.LSE, lse.shape[1])
        for uid, (by_token, _) in zip(OPERANDS[direction], strides, strict=True):
            tensors[uid.offsets] = plan.offsets(uid, by_token)
    built(operands[0].device, plan.spec(direction, strides)).run(tensors)


def built(device: torch.device, spec: GraphSpec) -> Graph:
    """The graph of a spec on a CUDA device. The first use builds it.

    Raises:
        UnsupportedError: cuDNN refuses the graph.
    """
    return _build(torch.cuda.current_device() if device.index is None else device.index, spec)


@lru_cache(maxsize=MAX_GRAPHS)
def _build(device_index: int, spec: GraphSpec) -> Graph:
    from longca_cudnn.graphs import Graph

    with torch.cuda.device(device_index):
        return Graph(spec, handle=_handle(device_index))


@cache
def _handle(device_index: int) -> Any:
    from longca_cudnn.graphs import new_handle

    with torch.cuda.device(device_index):
        return new_handle()
