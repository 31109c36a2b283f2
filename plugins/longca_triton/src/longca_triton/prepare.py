"""The backward's first launch: what each query needs of out and lse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longca_triton.descriptors import strides

__all__ = ["run_prepare"]

_ELEMENTS = 8192  # of out and dout a program


def run_prepare(kernel: Any, dout: Tensor, out: Tensor, lse: Tensor, multiple: int = 1) -> Tensor:
    """Runs a kernel that writes each query's exponent and delta: its lse in powers of two, and Σ dout·out.

    Args:
        kernel: A Triton kernel, which takes out, dout, lse, the two results, the strides of the first three over tokens
            and heads (of lse over heads and tokens), the queries, and these rounded up; constants HEAD_DIM and BLOCK.
            A program takes BLOCK queries of one head; the grid is blocks by heads.
        dout: Gradient of the output: [Tq, Hq, D], D a power of two.
        out: [Tq, Hq, D].
        lse: float32 [Hq, Tq].
        multiple: Of what the queries of the results are to be a multiple, a power of two: more than BLOCK matters only
            to kernels that read past the last query's.

    Returns:
        Exponents and deltas: float32 [2, Hq, queries rounded up].
    """
    num_queries, heads, head_dim = out.shape
    block = _ELEMENTS // head_dim
    multiple = max(block, multiple)
    padded = -(-num_queries // multiple) * multiple
    prepared = torch.empty((2, heads, padded), dtype=torch.float32, device=out.device)
    kernel[(padded // block, heads)](
        out,
        dout,
        lse,
        *prepared,
        *strides(out, dout),
        *lse.stride(),
        num_queries,
        padded,
        HEAD_DIM=head_dim,
        BLOCK=block,
        enable_fp_fusion=True,
    )
    return prepared
