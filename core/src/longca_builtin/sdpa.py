"""sdpa: the operators of torch.nn.functional.scaled_dot_product_attention, called below autograd to get lse.

It takes a causal flag or a dense mask. On CPUs one fused kernel computes both. On CUDA devices FlashAttention-2
computes full and causal masks in half precision. The memory-efficient kernel of xFormers computes all other masks,
which it takes as an additive bias, and values of another head dimension. The operators' backwards take any out and lse.

Source: aten/src/ATen/native/transformers of PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longca.errors import UnsupportedError
from longca.kernels.base import Plan, fill, new_out, no_gradients, nothing_seen, readable, torch_device, torch_dtype
from longca.manifests import Problem
from longca.masks import Form

__all__ = ["SDPA", "SDPAPlan"]

aten = torch.ops.aten

#: q, k and v, and their gradients.
Three = tuple[Tensor, Tensor, Tensor]


class CPUFlash:
    """The fused CPU kernel. It takes GQA and any bias.

    In half precision its backward adds dk and dv up in that precision, over all heads of a group and all blocks of
    queries: with 8 heads for each KV head they miss the limits of `longca verify` from about 2048 tokens on. So a
    backward in half precision is computed in float32, which also takes less time in float16 (PyTorch 2.13). Its bias is
    in float32, which a forward takes too.
    """

    def forward(self, qkv: Three, bias: Tensor | None, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        """Out [1, H, Tq, D], and lse [1, H, at least Tq]."""
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(*qkv, 0.0, is_causal, attn_mask=bias, scale=scale)
        return out, lse

    def backward(
        self, dout: Tensor, qkv: Three, out: Tensor, lse: Tensor, bias: Tensor | None, is_causal: bool, scale: float
    ) -> Three:
        """Gradients of q, k and v."""
        wide = torch.promote_types(dout.dtype, torch.float32)
        tensors = [x.to(wide) for x in (dout, *qkv, out)]
        dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *tensors, lse, 0.0, is_causal, attn_mask=bias, scale=scale
        )
        return dq.to(dout.dtype), dk.to(dout.dtype), dv.to(dout.dtype)


class CUDAFlash:
    """FlashAttention-2 as PyTorch builds it. It takes GQA and no bias."""

    def forward(self, qkv: Three, bias: Tensor | None, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        """Out [1, H, Tq, D], and lse [1, H, at least Tq]."""
        assert bias is None
        out, lse, *_ = aten._scaled_dot_product_flash_attention(*qkv, 0.0, is_causal, False, scale=scale)
        return out, lse

    def backward(
        self, dout: Tensor, qkv: Three, out: Tensor, lse: Tensor, bias: Tensor | None, is_causal: bool, scale: float
    ) -> Three:
        """Gradients of q, k and v."""
        q, k, _ = qkv
        lengths = None, None, q.shape[2], k.shape[2]
        no_dropout = torch.empty(0, dtype=torch.int64, device=q.device)
        dropout = 0.0, is_causal, no_dropout, no_dropout
        dq, dk, dv = aten._scaled_dot_product_flash_attention_backward(
            dout, *qkv, out, lse.contiguous(), *lengths, *dropout, scale=scale
        )
        return dq, dk, dv


class CUDAEfficient:
    """xFormers' memory-efficient kernel as PyTorch builds it. It takes a bias, and as many KV heads as query heads.

    Fewer KV heads are repeated, and their gradients summed.
    """

    _LSE_ALIGNMENT = 32  # queries: lse comes and goes padded to whole warps

    def forward(self, qkv: Three, bias: Tensor | None, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        """Out [1, H, Tq, D], and lse [1, H, at least Tq]."""
        out, lse, *_ = aten._scaled_dot_product_efficient_attention(
            *_repeat(qkv), _expand(bias, qkv[0]), True, 0.0, is_causal, scale=scale
        )
        return out, lse

    def backward(
        self, dout: Tensor, qkv: Three, out: Tensor, lse: Tensor, bias: Tensor | None, is_causal: bool, scale: float
    ) -> Three:
        """Gradients of q, k and v."""
        q, k, v = qkv
        no_dropout = torch.empty((), dtype=torch.int64, device=q.device)
        dropout = no_dropout, no_dropout, 0.0, [True, True, True, False], is_causal
        # The operator reads the rows of out as those of a contiguous [1, Tq, H, D], and ignores its strides.
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
        lse = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % self._LSE_ALIGNMENT))
        dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
            dout, *_repeat(qkv), _expand(bias, q), out, lse, *dropout, scale=scale
        )
        return dq, _sum_repeats(dk, k), _sum_repeats(dv, v)


def _repeat(qkv: Three) -> Three:
    """The tensors with a KV head for each query head."""
    q, k, v = qkv
    if k.shape[1] == q.shape[1]:
        return qkv
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return q, k, v


def _sum_repeats(grad: Tensor, x: Tensor) -> Tensor:
    return grad if grad.shape == x.shape else grad.unflatten(1, (x.shape[1], -1)).sum(2)


def _expand(bias: Tensor | None, q: Tensor) -> Tensor | None:
    return None if bias is None else bias.expand(-1, q.shape[1], -1, -1)


OPERATORS: dict[str, CPUFlash | CUDAFlash | CUDAEfficient] = {
    "cpu_flash": CPUFlash(),
    "flash": CUDAFlash(),
    "efficient": CUDAEfficient(),
}


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
            return fill(out, new_out(q, v).zero_()), fill(lse, nothing_seen(q))
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
    of_one_dim = problem.head_dim <= 256 and problem.head_dim_v is None
    flash_fits = of_one_dim and (problem.device.capability or (0, 0)) >= (8, 0)
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
