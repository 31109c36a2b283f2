"""What failing cases have in common, told from kernels that are wrong in a known way."""

from itertools import product

import pytest
import torch

from longca.manifests import Device, Problem
from longca.masks import build
from longca_bench.conformance.failure_summary import Case, failure_summary
from longca_bench.conformance.oracle import verify_problem
from longca_builtin.naive import Naive


class WrongTail(Naive):
    """The rows of dk and dv in a last tile that is not full are zero."""

    def backward(self, *tensors, **buffers):
        dq, dk, dv = super().backward(*tensors, **buffers)
        if len(dk) % 128 and len(dk) > 128:
            dk[len(dk) // 128 * 128 :] = dv[len(dk) // 128 * 128 :] = 0
        return dq, dk, dv


class WrongGroups(Naive):
    """The heads of queries that share KV heads are in another order."""

    def forward(self, q, k, v, plan, **buffers):
        out, lse = super().forward(q, k, v, plan, **buffers)
        if q.shape[1] != k.shape[1]:
            out.copy_(torch.roll(out, 1, dims=1))
        return out, lse


#: Numbers of queries and keys around tiles of 128.
LENGTHS = ((64, 64), (128, 128), (192, 131), (131, 256), (319, 319))


def cases(kernel):
    """The findings on a few lengths, patterns and heads."""
    for (queries, keys), pattern, heads in product(LENGTHS, ("causal", "full"), (2, 4)):
        about = {"heads_q": heads, "heads_kv": 2, "head_dim": 16, "dtype": "float32", "direction": "backward"}
        problem = Problem(mask=build(pattern, queries, seqlen_k=keys), device=Device("cpu"), **about)
        yield Case(f"{pattern} {queries} × {keys}", problem, verify_problem(kernel, problem, None))


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (
            WrongTail(),
            "wrong in 8 of 20 problems, only where keys are no multiple of 64; dk and dv; keys of the last tile of 128",
        ),
        (WrongGroups(), "wrong in 10 of 20 problems, only where query heads share KV heads; out"),
        (Naive(), ""),
    ],
)
def test_failures_are_summarised_by_what_they_have_in_common(kernel, said):
    assert failure_summary(list(cases(kernel))) == said
