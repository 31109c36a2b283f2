"""sdpa: the operators of torch.nn.functional.scaled_dot_product_attention, called below autograd to get lse.

It takes a causal flag or a dense mask. On CPUs one fused kernel computes both. On CUDA devices FlashAttention-2
computes full and causal masks in half precision. The memory-efficient kernel of xFormers computes all other masks, and
takes a dense mask as an additive bias. The operators' backwards take any out and lse.

Source: aten/src/ATen/native/transformers of PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longca.errors import UnsupportedError
from longca.kernels.base import Plan, fill, no_gradients, nothing_seen, readable, torch_device, torch_dtype
from longca.manifests import Problem
from longca.masks import Form
from longca_builtin.sdpa_operators import OPERATORS

__all__ = ["SDPA", "SDPAPlan"]

_BIAS_ALIGNMENT = 16  # elements: the memory-efficient kernel reads its bias in 16-element strides


@dataclass(eq=False)
class SDPAPlan(Plan):
    """A plan for sdpa.

    Attributes:
        bias: Additive mask [1, 1 or Hq, Sq, Sk], −∞ for hidden pairs. None for full and causal masks.
        empty: Whether each query sees nothing: bool [1 or Hq, Sq]. None if all see something.
    """

    bias: Tensor | None = None
    empty: Tensor | None = None

    @property
    def is_causal(self) -> bool:
        """Whether the causal flag does the masking."""
        return self.form is Form.CAUSAL


class SDPA:
    """PyTorch's fused attention."""

    def plan(self, problem: Problem) -> SDPAPlan:
        """Chooses the operator, and makes the bias if the mask needs one."""
        mask = problem.concrete_mask
        if mask.admits(Form.FULL):
            form = Form.FULL
        elif mask.is_square and mask.admits(Form.CAUSAL):
            form = Form.CAUSAL
        else:
            form = Form.DENSE
        backend = _backend(problem, form)
        if form is not Form.DENSE:
            return SDPAPlan(problem, form, backend)
        bias = _bias(problem)
        empty = (bias == -torch.inf).all(-1)[0]
        return SDPAPlan(problem, form, backend, bias, empty if empty.any() else None)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: SDPAPlan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v. See `Kernel.forward`."""
        if not (q.numel() and k.numel()):  # the operators divide by the lengths
            return fill(out, torch.zeros_like(q)), fill(lse, nothing_seen(q))
        operator = OPERATORS[plan.backend]
        qkv = _batched(q), _batched(k), _batched(v)
        result, sums = operator.forward(qkv, plan.bias, plan.is_causal, plan.problem.scale)
        sums = sums[0, :, : q.shape[0]]
        result = result[0].transpose(0, 1)
        if plan.empty is not None:
            sums = sums.masked_fill(plan.empty, -torch.inf)
            result = result.masked_fill(plan.empty.T[..., None], 0.0)
        return fill(out, result), fill(lse, sums)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: SDPAPlan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v. See `Kernel.backward`."""
        if not (q.numel() and k.numel()):
            return no_gradients((q, k, v), (dq, dk, dv))
        # A row that sees nothing has weights exp(−∞ − lse): 0 for any finite lse, but NaN for its own −∞.
        lse = lse.masked_fill(lse == -torch.inf, 0.0)[None]
        dout, q, k, v, out = (_batched(x) for x in (dout, q, k, v, out))
        operator = OPERATORS[plan.backend]
        grads = operator.backward(dout, (q, k, v), out, lse, plan.bias, plan.is_causal, plan.problem.scale)
        first, second, third = (
            fill(buffer, grad[0].transpose(0, 1)) for buffer, grad in zip((dq, dk, dv), grads, strict=True)
        )
        return first, second, third


def _batched(x: Tensor) -> Tensor:
    """[T, H, D] → [1, H, T, D], as a view if D is contiguous. The operators need that."""
    return readable(x).transpose(0, 1)[None]


def _backend(problem: Problem, form: Form) -> str:
    if problem.device.kind == "cpu":
        return "cpu_flash"
    flash_fits = problem.head_dim <= 256 and (problem.device.capability or (0, 0)) >= (8, 0)
    if form is not Form.DENSE and flash_fits and problem.dtype in ("bfloat16", "float16"):
        return "flash"
    if problem.dtype == "float64":
        raise UnsupportedError("sdpa has no fused float64 kernel on CUDA devices. Use naive, or float32")
    return "efficient"


def _bias(problem: Problem) -> Tensor:
    """The dense mask as an additive bias. Rows are padded to the strides of the memory-efficient kernel."""
    mask, device = problem.concrete_mask, torch_device(problem.device)
    hidden = torch.from_numpy(~mask.dense()).to(device)
    hidden = hidden.reshape(-1, mask.seqlen_q, mask.seqlen_k)
    padded = -(-mask.seqlen_k // _BIAS_ALIGNMENT) * _BIAS_ALIGNMENT
    dtype = torch_dtype(problem.dtype)
    if problem.device.kind == "cpu" and problem.direction == "backward":  # see CPUFlash
        dtype = torch.promote_types(dtype, torch.float32)
    bias = torch.zeros((*hidden.shape[:2], padded), dtype=dtype, device=device)
    bias[..., : mask.seqlen_k].masked_fill_(hidden, -torch.inf)
    if mask.heads not in (1, problem.heads_q):  # one mask for each KV head: its query heads share it
        bias = bias.repeat_interleave(problem.heads_q // mask.heads, dim=0)
    return bias[None, ..., : mask.seqlen_k]
