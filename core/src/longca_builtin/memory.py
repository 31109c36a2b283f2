"""The memory of `naive` beside its tensors, in bytes, for its manifest. Torch-free."""

from __future__ import annotations

from longca.kernels.sizes import Tensors
from longca.manifests import Problem
from longca.masks import Form

__all__ = ["naive_plan", "naive_workspace"]

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
        copies = tensors.wide(tensors.out + tensors.k + tensors.v)
        copies *= 2 if problem.direction == "backward" else 1
        copies += tensors.wide(tensors.q)
    return _ALIVE[problem.direction] * scores * max(4, tensors.element) + visible + copies


def naive_plan(problem: Problem, form: Form) -> int:
    """Nothing, because blocks of the mask are made on demand."""
    return 0
