"""Rows: parts of the checks of a timed call.

Ranks compare the rows of some tokens, which are drawn after the call, because whole results would have to travel
between them. Heads without a reference are held by a checksum: a weighted sum of each row's elements, compared with
that of the verified results. A row of lse is one number, and is its own checksum.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random, SystemRandom

import torch
from torch import Tensor

from longca_bench.verification.change import Change
from longca_bench.verification.findings import Finding, wrong
from longca_bench.verification.reference import Reference, Rows
from longca_bench.verification.tokens import by_tokens
from longca_bench.verification.tolerances import lse_limit

__all__ = ["ROWS", "Checksums", "at_tokens", "drawn_tokens", "rows_at"]

#: Tokens of each tensor whose rows are compared after a timed call.
ROWS = 256
#: Ulps of the dtype, relative to the larger of a row's and the head's mean norm, by which checksums may differ.
CHECKSUM_ULPS = 16.0


class Checksums:
    """Checksums of verified results, for the heads that have no reference.

    `is_complete` says whether the results of the first verification have all been kept.
    """

    def __init__(self, dtype: torch.dtype, *, rough_lse: bool) -> None:
        self.is_complete = False
        self._dtype, self._rough_lse = dtype, rough_lse
        self._lse: Tensor | None = None
        self._weights: dict[int, Tensor] = {}
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(self, name: str, result: Tensor) -> None:
        """Keeps the checksums of a verified result, as the reference has it."""
        if name == "lse":
            self._lse = result.clone()
        else:
            norms = by_tokens(lambda rows: rows.float().norm(dim=-1), result)
            self._sums[name] = by_tokens(self._summed, result), norms.maximum(norms.mean(0, keepdim=True))

    def check(self, results: dict[str, Tensor], change: Change) -> list[Finding]:
        """The failures of the results of a timed call, whose inputs have a change."""
        found = []
        for name, (sums, norms) in self._sums.items():
            if name not in results:
                continue
            now = by_tokens(lambda rows, name=name: self._summed(change.undo(name, rows)), results[name])
            excess = (now - sums).abs() - CHECKSUM_ULPS * torch.finfo(results[name].dtype).eps * norms
            if (excess > 0).any():
                token, head = divmod(int(excess.argmax()), excess.shape[1])
                head = change.place(name, head)
                found.append(_moved(name, token, head))
        if self._lse is not None and "lse" in results:
            found += self._check_lse(self._lse, change.undo("lse", results["lse"]), change)
        return found

    def _check_lse(self, was: Tensor, now: Tensor, change: Change) -> list[Finding]:
        """The failure of an lse [Hq, Tq], if there is one. Both errors may be as large as passes. NaN was not given."""
        far = (now - was).abs() > 2 * lse_limit(was, self._dtype, rough=self._rough_lse)
        moved = (far | (now.isneginf() != was.isneginf()) | now.isnan()) & ~was.isnan()
        if not moved.any():
            return []
        head, token = divmod(int(moved.int().argmax()), moved.shape[1])
        return [_moved("lse", token, change.place("lse", head))]

    def _summed(self, result: Tensor) -> Tensor:
        width = result.shape[-1]
        if width not in self._weights:
            generator = torch.Generator().manual_seed(SystemRandom().getrandbits(63))
            signs = torch.randint(0, 2, (width,), generator=generator).mul(2).sub(1)
            self._weights[width] = signs.to(result.device, torch.float32)
        return result.float() @ self._weights[width]


def _moved(name: str, token: int, head: int) -> Finding:
    return wrong(name, f"token {token}, head {head} is not as it was when it was verified")


def drawn_tokens(count: int, random: Random, most: int = ROWS) -> Tensor:
    """Tokens, in order: some, or all if there are few."""
    return torch.tensor(list(range(count)) if count <= most else sorted(random.sample(range(count), most)))


def rows_at(name: str, tensor: Tensor, tokens: Tensor) -> Tensor:
    """Some tokens of a tensor, by its name: of `lse` [Hq, Tq], or of any other [T, H, D]."""
    return tensor.index_select(int(name == "lse"), tokens)


def at_tokens(expected: Reference, name: str, tokens: Tensor) -> Reference:
    """The reference of one tensor at some tokens."""
    if name == "lse":
        return replace(expected, lse=rows_at(name, expected.lse, tokens))
    rows = expected.rows[name]
    there = Rows(*(x.index_select(0, tokens) for x in (rows.value, rows.spread, rows.pytorch)))
    return replace(expected, rows={name: there})
