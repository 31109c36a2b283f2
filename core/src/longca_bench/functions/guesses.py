"""Guesses: what a function with a known mistake returns.

A guess is the right result of another call, such as one with another mask, so it is compared within the same limits as
a right result. `rank_guesses` has those of context parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.kernels.base import torch_dtype
from longca.manifests.offers import DType
from longca.masks import Mask, build, from_dense
from longca.masks.slice_mask import SliceMask
from longca_bench.functions.arguments import document_bounds, is_causal
from longca_bench.functions.oracle import Asked, right, turned_back
from longca_bench.verification.reference import Reference, reference
from longca_bench.verification.verify import check_values

__all__ = [
    "Dense",
    "Guess",
    "Results",
    "alignment",
    "diagonal",
    "documents",
    "empty_rows",
    "equals",
    "heads",
    "ignored",
    "no_turns",
    "no_window",
    "nothing",
    "precision",
    "scale",
    "transposed",
    "window",
    "with_mask",
]

Results = dict[str, Tensor]
Dense = NDArray[np.bool_]
#: A guess: details in words, and whether results are those of the mistake.
Guess = tuple[str, Callable[[Results], bool]]
_USUAL_BASE = 10000.0
_LOG2_E = math.log2(math.e)


def equals(expected: Reference, read: Callable[[Results], Results] | None = None) -> Callable[[Results], bool]:
    """Compares results, read in another order if asked, with those of a mistake."""
    return lambda results: check_values(read(results) if read else results, expected).passed


def with_mask(asked: Asked, dense: Dense, detail: str = "") -> Iterator[Guess]:
    """A guess with another mask, if it is another one."""
    mask = asked.problem.concrete_mask
    if mask.heads == 1 and not np.array_equal(dense, mask.dense()):
        yield detail, equals(right(replace(asked, problem=asked.problem.with_mask(from_dense(dense)))))


def _beyond(mask: Mask) -> NDArray[np.int64]:
    """The distance of each key beyond the diagonal: [queries, keys]. The last query is aligned with the last key."""
    queries, keys = np.arange(mask.seqlen_q)[:, None], np.arange(mask.seqlen_k)
    return np.asarray(keys - queries - (mask.seqlen_k - mask.seqlen_q))


def _widest(mask: Mask) -> Dense:
    """Every pair, or every pair that is not in the future."""
    return _beyond(mask) <= 0 if is_causal(mask) else np.ones((mask.seqlen_q, mask.seqlen_k), np.bool_)


def documents(asked: Asked) -> Iterator[Guess]:
    """Queries that see all documents, up to themselves if the mask is causal."""
    mask = asked.problem.concrete_mask
    if len(mask.factors.get("documents", ())) > 1:
        yield from with_mask(asked, _widest(mask))


def window(asked: Asked) -> Iterator[Guess]:
    """A window that is one token wider, or one token narrower."""
    mask = asked.problem.concrete_mask
    if mask.pattern is None or "window" not in mask.factors:
        return
    for change, detail in ((1, "one token too many"), (-1, "one token too few")):
        window = mask.factors["window"] + change
        if window >= 0:
            lengths = {} if mask.is_square else {"seqlen_k": mask.seqlen_k}
            other = build(mask.pattern, mask.seqlen_q, **lengths, **{**mask.factors, "window": window})
            yield from with_mask(asked, other.dense(), detail)


def no_window(asked: Asked) -> Iterator[Guess]:
    """The mask without its window."""
    mask = asked.problem.concrete_mask
    if "window" in mask.factors:
        yield from with_mask(asked, _widest(mask))


def diagonal(asked: Asked) -> Iterator[Guess]:
    """A causal diagonal that is one key earlier, or one key later."""
    mask = asked.problem.concrete_mask
    if not is_causal(mask):
        return
    beyond, shown = _beyond(mask), mask.dense()
    together = np.ones_like(shown)
    if mask.is_square:
        document = np.searchsorted(document_bounds(mask), np.arange(mask.seqlen_q), "right")
        together = document[:, None] == document
    yield from with_mask(asked, shown & (beyond < 0), "a query does not see its own key")
    yield from with_mask(asked, shown | ((beyond == 1) & together), "a query sees the next key")


def alignment(asked: Asked) -> Iterator[Guess]:
    """A diagonal that aligns the first query with the first key."""
    mask = asked.problem.concrete_mask
    if not mask.is_square and isinstance(mask, SliceMask) and mask.pattern in _BANDS:
        more = mask.seqlen_k - mask.seqlen_q
        lo, hi = mask.array[0, 4:] - more
        ahead = _beyond(mask) + more
        yield from with_mask(asked, ((ahead >= lo) | (mask.pattern == "causal")) & (ahead <= hi))


_BANDS = ("causal", "causal_sliding_window", "full_sliding_window")


def transposed(asked: Asked) -> Iterator[Guess]:
    """The transposed mask."""
    if asked.problem.concrete_mask.is_square and asked.problem.concrete_mask.heads == 1:
        yield from with_mask(asked, asked.problem.concrete_mask.dense().T)


def ignored(asked: Asked) -> Iterator[Guess]:
    """A full or causal mask instead of this one."""
    mask = asked.problem.concrete_mask
    everything = np.ones((mask.seqlen_q, mask.seqlen_k), np.bool_)
    yield from with_mask(asked, everything, "every query sees every key")
    yield from with_mask(asked, _beyond(mask) <= 0, "every mask is causal")


def scale(asked: Asked) -> Iterator[Guess]:
    """Other factors on the scores."""
    scale, width = asked.problem.scale, asked.problem.head_dim
    others = {
        1.0: "no factor",
        1 / width: "1/D",
        math.sqrt(scale): "the root of it",
        1 / math.sqrt(width * asked.problem.heads_q): "1/√(heads·D)",
        scale * _LOG2_E: "log₂e times it",
        scale / _LOG2_E: "ln 2 times it",
    }
    for other, words in others.items():
        if not math.isclose(other, scale):
            problem = replace(asked.problem, softmax_scale=other)
            yield f"{words} ({other:.4g}) instead of {scale:.4g}", equals(right(replace(asked, problem=problem)))


def heads(asked: Asked) -> Iterator[Guess]:
    """Query heads that read KV heads in turn, instead of in groups."""
    problem, x = asked.problem, asked.inputs
    groups, heads = problem.num_heads_kv, problem.heads_q
    order = [head for kv in range(groups) for head in range(kv, heads, groups)]
    if problem.concrete_mask.heads > 1 or order == list(range(heads)):
        return
    mixed = replace(asked, inputs=replace(x, q=x.q[:, order], dout=x.dout[:, order]))

    def read(results: Results) -> Results:
        return {name: r[:, order] if name in ("out", "dq") else r for name, r in results.items()}

    yield f"query head h reads KV head h mod {groups} instead of h div {heads // groups}", equals(right(mixed), read)


def empty_rows(asked: Asked) -> Iterator[Guess]:
    """Wrong outputs in rows that see nothing, and right ones in the others. Gradients are not looked at."""
    mask = asked.problem.concrete_mask
    blind = torch.from_numpy(mask.visible_keys() == 0).T.to(asked.inputs.q.device)  # [Tq, mask heads]
    if not blind.any() or asked.rotary is not None:
        return
    expected = right(replace(asked, problem=replace(asked.problem, direction="forward")))  # type: ignore[arg-type]
    rows = blind.repeat_interleave(asked.problem.heads_q // mask.heads, dim=1)

    def is_nan(results: Results, *, wanted: bool) -> bool:
        out = results["out"]
        there = out.isnan().any(-1)
        seen = out.masked_fill(rows[..., None], 0)
        return bool((there & rows).any()) is wanted and check_values({"out": seen}, expected).passed

    yield "the output there is NaN", lambda results: is_nan(results, wanted=True)
    yield (
        "the output there is not 0",
        lambda results: is_nan(results, wanted=False) and bool(results["out"][rows].any()),
    )


def precision(asked: Asked) -> Iterator[Guess]:
    """Errors of the size of a lower precision's, in most rows."""
    exact, own = right(asked), torch_dtype(asked.problem.dtype).itemsize
    lower: dict[DType, str] = {"float32": "float32", "float16": "float16 or TF32", "bfloat16": "bfloat16"}
    for dtype, words in lower.items():
        if torch_dtype(dtype).itemsize < own:
            rough = turned_back(asked, reference(replace(asked.problem, dtype=dtype), asked.turned))
            yield f"its errors are those of {words}", lambda results, low=rough: _as_rough(results, exact, low, 4.0)  # type: ignore[misc]
    if own == 2:
        yield (
            "its errors are several times those of PyTorch. Keep sums and the softmax in float32",
            lambda results: _as_rough(results, exact, exact, 32.0),
        )


def _as_rough(results: Results, exact: Reference, rough: Reference, times: float) -> bool:
    """Whether errors are about those of rougher arithmetic: in the median row and in the worst."""
    wrong = []
    for name, result in results.items():
        rows, size = exact.rows[name], rough.rows[name].pytorch
        distance = (result.to(rows.value.dtype) - rows.value).norm(dim=-1)
        scale = rows.spread.clamp_min(1e-30)
        if not distance.isfinite().all() or float((distance / scale).amax()) > times * float((size / scale).amax()):
            return False
        wrong.append(float(distance.median()) > float(size.median()) / 32)
    return any(wrong)


def no_turns(asked: Asked) -> Iterator[Guess]:
    """Rotary positions that were not asked for, that are missing, or that pair other elements."""
    problem = asked.problem
    if asked.rotary is None and problem.head_dim % 2 == 0 and problem.concrete_mask.is_square:
        usual = Asked.of(problem, asked.inputs, _USUAL_BASE, asked.tokens)
        yield f"the function turns q and k by itself. Say so: --rotary {_USUAL_BASE:g}", equals(right(usual))
    elif asked.rotary is not None:
        yield "q and k are not turned", equals(right(replace(asked, rotary=None)))
        other = replace(asked.rotary, interleaved=not asked.rotary.interleaved)
        yield "neighbouring elements are pairs, and not the two halves", equals(right(replace(asked, rotary=other)))


def nothing(asked: Asked) -> Iterator[Guess]:
    """Mistakes that `check` finds by other calls."""
    yield from ()
