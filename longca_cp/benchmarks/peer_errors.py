"""Errors of results that ranks computed together, against the kernel alone, which has all tokens and no strategy.

Each rank computes a share of the heads over all tokens. A subject's results are spread over ranks by tokens, and go to
the rank with the heads. So every element of every tensor is compared, and the lse through the gradients.
"""

from __future__ import annotations

from peer_subjects import Case, Subject
from torch import Tensor

import longca
from longca_bench.measuring.shares import Share, by_heads, held_tokens, shares_of_all

__all__ = ["LIMIT", "Expected"]

#: Relative Frobenius error above which a tensor is wrong: bfloat16 rounds by up to 2⁻⁹, and merging parts rounds again.
LIMIT = 2e-2


class Expected:
    """out, dq, dk and dv of this rank's share of the heads.

    Args:
        case: The case.
    """

    def __init__(self, case: Case) -> None:
        self._ranks = case.ranks
        self._dealt = shares_of_all(case.problem, case.ranks.size)
        self._tensors = _computed(case, self._dealt[case.ranks.rank])

    def errors(self, subject: Subject, results: dict[str, Tensor]) -> dict[str, float]:
        """The relative Frobenius error of each tensor over all ranks. All ranks call it.

        Args:
            subject: The subject of the results.
            results: This rank's tokens: [T, H, D] each.
        """
        return {name: self._error(name, subject, x) for name, x in results.items()}

    def _error(self, name: str, subject: Subject, mine: Tensor) -> float:
        held = held_tokens(subject.layout, subject.places)
        whole = by_heads(name, mine, held, self._dealt, self._ranks)
        expected = self._tensors.get(name, whole).float()
        norms = (whole.float() - expected).norm().item() ** 2, expected.norm().item() ** 2
        off, size = map(sum, zip(*self._ranks.everyone(norms), strict=True))
        return float((off / size) ** 0.5)


def _computed(case: Case, share: Share) -> dict[str, Tensor]:
    if share.is_empty:
        return {}
    kernel = longca.registry().load(case.kernel)
    x, plan = share.inputs(case.inputs), kernel.plan(share.problem(case.problem))
    out, lse = kernel.forward(x.q, x.k, x.v, plan)
    dq, dk, dv = kernel.backward(x.dout, x.q, x.k, x.v, out, lse, plan)
    return {"out": out, "dq": dq, "dk": dk, "dv": dv}
