"""The memory of the core's kernels beside their tensors, in bytes, for their manifests. Torch-free.

    q, k    bytes of a tensor of that shape and dtype
    wide    the same in float32 (float64 for float64)
    lse     bytes of the log-sum-exp

Sources: `naive.py` and `sdpa.py` beside this file, and aten/src/ATen/native/transformers/cuda/attention_backward.cu of
PyTorch. A test compares the formulas with the records in results/h200.
"""

from __future__ import annotations

from longca.kernels.sizes import Tensors, empty_bytes
from longca.manifests import Problem
from longca.masks import Form

__all__ = ["naive_plan", "naive_workspace", "sdpa_plan", "sdpa_workspace"]

#: Scores of all heads that naive computes together, by kind of device.
_SCORES = {"cpu": 2**20, "cuda": 2**27}

#: Tensors of scores that are alive together.
_ALIVE = {"forward": 3, "backward": 5}


def naive_workspace(problem: Problem, form: Form) -> int:
    """Scores of a block of queries, and copies in float32 of all tensors in half precision."""
    tensors, mask = Tensors.of(problem), problem.concrete_mask
    rows = 16 * mask.seqlen_k * problem.heads_q  # of the smallest block
    scores = min(mask.seqlen_q * mask.seqlen_k * problem.heads_q, max(_SCORES[problem.device.kind], rows))
    visible = scores // problem.heads_q * mask.heads
    copies = 0
    if tensors.element == 2:
        copies = tensors.wide_q + 2 * tensors.wide_k
        copies *= 2 if problem.direction == "backward" else 1
        copies += tensors.wide_q
    return _ALIVE[problem.direction] * scores * max(4, tensors.element) + visible + copies


def naive_plan(problem: Problem, form: Form) -> int:
    """Nothing, because blocks of the mask are made on demand."""
    return 0


def sdpa_workspace(problem: Problem, form: Form) -> int:
    """The allocations of PyTorch's operators. The fused CPU kernel's are copies in float32."""
    tensors, backward = Tensors.of(problem), problem.direction == "backward"
    if problem.device.kind == "cpu":
        return 4 * (tensors.wide_q + tensors.wide_k) if tensors.element == 2 and backward else 0
    # A KV head for each query head.
    expanded = 2 * tensors.k * (problem.heads_q // problem.num_heads_kv) if problem.is_gqa else 0
    half = tensors.element == 2 and problem.head_dim <= 256 and (problem.device.capability or (0, 0)) >= (8, 0)
    if form is not Form.DENSE and half:
        padded = -(-tensors.tokens_q // 128) * 128 * problem.heads_q * 4 * (-(-problem.head_dim // 32) * 32 + 1)
        return padded + expanded + tensors.lse if backward else 0
    if not backward:
        return expanded
    # Gradients of the expanded heads are there before dk and dv are.
    gradients = expanded - 2 * tensors.k if problem.is_gqa else 0
    return expanded + gradients + tensors.wide_q + 4 * tensors.lse


def sdpa_plan(problem: Problem, form: Form) -> int:
    """The dense mask as a bias in the problem's dtype, and a bool for each query that may see nothing.

    For a backward on a CPU the bias is in float32 at least.
    """
    if form is not Form.DENSE:
        return 0
    tensors, mask = Tensors.of(problem), problem.concrete_mask
    heads = 1 if mask.heads == 1 else problem.heads_q
    is_wide = problem.device.kind == "cpu" and problem.direction == "backward"
    element = max(4, tensors.element) if is_wide else tensors.element
    return heads * mask.seqlen_q * mask.seqlen_k * element + empty_bytes(mask) * heads // mask.heads
