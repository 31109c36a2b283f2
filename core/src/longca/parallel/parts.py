"""Merging the outputs of several kernel calls over parts of the keys, in one pass over memory.

The parts lie in one tensor, so that every call writes straight into its place. On CUDA devices a Triton kernel reads
each part once and writes the output once; `longca.parallel.merge` in plain PyTorch would pass over memory eight times.
"""

from __future__ import annotations

from torch import Tensor

from longca.kernels.base import fill
from longca.kernels.buffers import writable
from longca.parallel.merge import merge

__all__ = ["merge_parts"]


def merge_parts(
    outs: Tensor, lses: Tensor, *, out: Tensor | None = None, lse: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The output and log-sum-exp of a softmax over all keys, from those over parts of them.

    Args:
        outs: Outputs over each part: [parts, Tq, Hq, D], contiguous.
        lses: Their log-sum-exps, −∞ where a query sees nothing: [parts, Hq, Tq], contiguous.
        out: Filled with the output and returned, where given: [Tq, Hq, D].
        lse: Likewise for the log-sum-exp: [Hq, Tq].

    Returns:
        out [Tq, Hq, D] in the dtype of `outs`, and lse [Hq, Tq].
    """
    if outs.is_cuda:
        from longca.parallel.parts_triton import merge_parts_on_cuda

        plain_out, plain_lse = writable(out, outs[0]), writable(lse, lses[0])
        merge_parts_on_cuda(outs, lses, plain_out, plain_lse)
        return fill(out, plain_out), fill(lse, plain_lse)
    merged: tuple[Tensor, Tensor] = outs[0], lses[0]
    for part in zip(outs[1:], lses[1:], strict=True):
        merged = merge(merged, part)
    return fill(out, merged[0].to(outs.dtype)), fill(lse, merged[1].to(lses.dtype))
