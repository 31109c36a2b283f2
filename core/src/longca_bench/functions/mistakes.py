"""Known mistakes of attention functions. A mistake is found by computing what it gives, and comparing.

Each mistake has guesses: what a function with this mistake returns. A guess is the right result of another call, such
as one with another mask, so it is compared within the same limits as a right result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.errors import MaskError
from longca.kernels.base import torch_dtype
from longca.manifests.offers import DType
from longca.masks import Mask, build, from_dense
from longca.masks.slice_mask import SliceMask
from longca_bench.functions.arguments import document_bounds, is_causal
from longca_bench.functions.oracle import Asked, right, turned_back
from longca_bench.verification.reference import Reference, part_reference, reference
from longca_bench.verification.verify import check_values
from longca_builtin.blockwise import attention_forward

__all__ = ["MOST_TOKENS", "Mistake", "explain"]

#: Tokens of the longest mask on which mistakes are looked for. Their masks are made dense.
MOST_TOKENS = 4096

_Results = dict[str, Tensor]
_Dense = NDArray[np.bool_]
#: A guess: details in words, and whether results are those of the mistake.
_Guess = tuple[str, Callable[[_Results], bool]]
_USUAL_BASE = 10000.0
_LOG2_E = math.log2(math.e)


def _equals(expected: Reference, read: Callable[[_Results], _Results] | None = None) -> Callable[[_Results], bool]:
    """Compares results, read in another order if asked, with those of a mistake."""
    return lambda results: check_values(read(results) if read else results, expected).passed


def _with(asked: Asked, dense: _Dense, detail: str = "") -> Iterator[_Guess]:
    """A guess with another mask, if it is another one."""
    mask = asked.problem.concrete_mask
    if mask.heads == 1 and not np.array_equal(dense, mask.dense()):
        yield detail, _equals(right(replace(asked, problem=asked.problem.with_mask(from_dense(dense)))))


def _beyond(mask: Mask) -> NDArray[np.int64]:
    """The distance of each key beyond the diagonal: [queries, keys]. The last query is aligned with the last key."""
    queries, keys = np.arange(mask.seqlen_q)[:, None], np.arange(mask.seqlen_k)
    return np.asarray(keys - queries - (mask.seqlen_k - mask.seqlen_q))


def _widest(mask: Mask) -> _Dense:
    """Every pair, or every pair that is not in the future."""
    return _beyond(mask) <= 0 if is_causal(mask) else np.ones((mask.seqlen_q, mask.seqlen_k), np.bool_)


def _documents(asked: Asked) -> Iterator[_Guess]:
    mask = asked.problem.concrete_mask
    if len(mask.factors.get("documents", ())) > 1:
        yield from _with(asked, _widest(mask))


def _window(asked: Asked) -> Iterator[_Guess]:
    mask = asked.problem.concrete_mask
    if mask.pattern is None or "window" not in mask.factors:
        return
    for change, detail in ((1, "one token too many"), (-1, "one token too few")):
        window = mask.factors["window"] + change
        if window >= 0:
            lengths = {} if mask.is_square else {"seqlen_k": mask.seqlen_k}
            other = build(mask.pattern, mask.seqlen_q, **lengths, **{**mask.factors, "window": window})
            yield from _with(asked, other.dense(), detail)


def _no_window(asked: Asked) -> Iterator[_Guess]:
    mask = asked.problem.concrete_mask
    if "window" in mask.factors:
        yield from _with(asked, _widest(mask))


def _diagonal(asked: Asked) -> Iterator[_Guess]:
    mask = asked.problem.concrete_mask
    if not is_causal(mask):
        return
    beyond, shown = _beyond(mask), mask.dense()
    together = np.ones_like(shown)
    if mask.is_square:
        document = np.searchsorted(document_bounds(mask), np.arange(mask.seqlen_q), "right")
        together = document[:, None] == document
    yield from _with(asked, shown & (beyond < 0), "a query does not see its own key")
    yield from _with(asked, shown | ((beyond == 1) & together), "a query sees the next key")


def _alignment(asked: Asked) -> Iterator[_Guess]:
    mask = asked.problem.concrete_mask
    if not mask.is_square and isinstance(mask, SliceMask) and mask.pattern in _BANDS:
        more = mask.seqlen_k - mask.seqlen_q
        lo, hi = mask.array[0, 4:] - more
        ahead = _beyond(mask) + more
        yield from _with(asked, ((ahead >= lo) | (mask.pattern == "causal")) & (ahead <= hi))


_BANDS = ("causal", "causal_sliding_window", "full_sliding_window")


def _transposed(asked: Asked) -> Iterator[_Guess]:
    if asked.problem.concrete_mask.is_square and asked.problem.concrete_mask.heads == 1:
        yield from _with(asked, asked.problem.concrete_mask.dense().T)


def _ignored(asked: Asked) -> Iterator[_Guess]:
    mask = asked.problem.concrete_mask
    everything = np.ones((mask.seqlen_q, mask.seqlen_k), np.bool_)
    yield from _with(asked, everything, "every query sees every key")
    yield from _with(asked, _beyond(mask) <= 0, "every mask is causal")


def _scale(asked: Asked) -> Iterator[_Guess]:
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
            yield f"{words} ({other:.4g}) instead of {scale:.4g}", _equals(right(replace(asked, problem=problem)))


def _heads(asked: Asked) -> Iterator[_Guess]:
    problem, x = asked.problem, asked.inputs
    groups, heads = problem.num_heads_kv, problem.heads_q
    order = [head for kv in range(groups) for head in range(kv, heads, groups)]
    if problem.concrete_mask.heads > 1 or order == list(range(heads)):
        return
    mixed = replace(asked, inputs=replace(x, q=x.q[:, order], dout=x.dout[:, order]))

    def read(results: _Results) -> _Results:
        return {name: r[:, order] if name in ("out", "dq") else r for name, r in results.items()}

    yield f"query head h reads KV head h mod {groups} instead of h div {heads // groups}", _equals(right(mixed), read)


def _empty_rows(asked: Asked) -> Iterator[_Guess]:
    """Wrong outputs in rows that see nothing, and right ones in the others. Gradients are not looked at."""
    mask = asked.problem.concrete_mask
    blind = torch.from_numpy(mask.visible_keys() == 0).T.to(asked.inputs.q.device)  # [Tq, mask heads]
    if not blind.any() or asked.rotary is not None:
        return
    expected = right(replace(asked, problem=replace(asked.problem, direction="forward")))  # type: ignore[arg-type]
    rows = blind.repeat_interleave(asked.problem.heads_q // mask.heads, dim=1)

    def is_nan(results: _Results, *, wanted: bool) -> bool:
        out = results["out"]
        there = out.isnan().any(-1)
        seen = out.masked_fill(rows[..., None], 0)
        return bool((there & rows).any()) is wanted and check_values({"out": seen}, expected).passed

    yield "the output there is NaN", lambda results: is_nan(results, wanted=True)
    yield (
        "the output there is not 0",
        lambda results: is_nan(results, wanted=False) and bool(results["out"][rows].any()),
    )


def _precision(asked: Asked) -> Iterator[_Guess]:
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


def _as_rough(results: _Results, exact: Reference, rough: Reference, times: float) -> bool:
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


def _no_turns(asked: Asked) -> Iterator[_Guess]:
    problem = asked.problem
    if asked.rotary is None and problem.head_dim % 2 == 0 and problem.concrete_mask.is_square:
        usual = Asked.of(problem, asked.inputs, _USUAL_BASE, asked.tokens)
        yield f"the function turns q and k by itself. Say so: --rotary {_USUAL_BASE:g}", _equals(right(usual))
    elif asked.rotary is not None:
        yield "q and k are not turned", _equals(right(replace(asked, rotary=None)))
        other = replace(asked.rotary, interleaved=not asked.rotary.interleaved)
        yield "neighbouring elements are pairs, and not the two halves", _equals(right(replace(asked, rotary=other)))


def _local_turns(asked: Asked) -> Iterator[_Guess]:
    if asked.rotary is not None and asked.tokens:
        yield "", _equals(right(replace(asked, rotary=replace(asked.rotary, at=_local(asked)))))


def _local(asked: Asked) -> NDArray[np.int64]:
    """The place of each token in its rank's shard."""
    found = np.empty(sum(map(len, asked.tokens)), np.int64)
    for held in asked.tokens:
        found[held] = np.arange(len(held))
    return found


def _together(asked: Asked) -> _Dense:
    """The pairs of which one rank holds both tokens."""
    owners = np.empty(sum(map(len, asked.tokens)), np.int64)
    for rank, held in enumerate(asked.tokens):
        owners[held] = rank
    return np.asarray(owners[:, None] == owners)


def _not_reduced(asked: Asked) -> Iterator[_Guess]:
    """The gradients of each rank's keys, from the rank's own queries alone."""
    problem = asked.problem
    if not asked.tokens or problem.direction == "forward" or problem.concrete_mask.heads > 1:
        return
    shown, same, x = problem.concrete_mask.dense(), _together(asked), asked.turned
    others = attention_forward(x.q, x.k, x.v, from_dense(shown & ~same), problem.scale, torch.float64)
    part = part_reference(problem.with_mask(from_dense(shown & same)), x, others)
    rows = turned_back(asked, part).rows
    whole = right(asked)
    yield "", _equals(replace(whole, rows={**whole.rows, "dk": rows["dk"], "dv": rows["dv"]}))


def _averaged(asked: Asked) -> Iterator[_Guess]:
    ranks = len(asked.tokens)
    if ranks < 2 or asked.problem.direction == "forward":
        return
    expected = right(asked)
    for factor, words in ((ranks, f"1/{ranks} of"), (1 / ranks, f"{ranks} times")):
        for names in (("dk", "dv"), ("dq", "dk", "dv")):
            yield f"{' and '.join(names)} are {words} the right ones", _equals(expected, _times(factor, names))


def _times(factor: float, names: tuple[str, ...]) -> Callable[[_Results], _Results]:
    return lambda results: {name: r * factor if name in names else r for name, r in results.items()}


def _own_keys(asked: Asked) -> Iterator[_Guess]:
    if asked.tokens and asked.problem.concrete_mask.heads == 1:
        shown, local = asked.problem.concrete_mask.dense(), _local(asked)
        yield from _with(asked, shown & _together(asked))
        yield from _with(asked, shown[np.ix_(local, local)] & _together(asked))


def _local_mask(asked: Asked) -> Iterator[_Guess]:
    if asked.tokens and asked.problem.concrete_mask.heads == 1:
        yield from _with(asked, asked.problem.concrete_mask.dense()[_local(asked)])


def _nothing(asked: Asked) -> Iterator[_Guess]:
    """Mistakes that `check` finds by other calls."""
    yield from ()


class Mistake(StrEnum):
    """A known mistake. Of several that explain as many masks, the first counts.

    Attributes:
        says: The mistake in one sentence, without the full stop.
        guesses: What a function with this mistake returns, for a call.
    """

    says: str
    guesses: Callable[[Asked], Iterator[_Guess]]

    def __new__(cls, name: str, says: str, guesses: Callable[[Asked], Iterator[_Guess]]) -> Mistake:
        """A member, which is its name."""
        member = str.__new__(cls, name)
        member._value_, member.says, member.guesses = name, says, guesses
        return member

    STRIDES = "strides", "Strided inputs are misread: contiguous ones give right results", _nothing
    BATCH = "batch", "The sequences of a batch are mixed: only some have right results", _nothing
    EMPTY_ROWS = "empty_rows", "Queries that see no key are wrong: their output is 0 by definition", _empty_rows
    POSITIONS = "positions", "Rotary positions are not sharded: each rank counts its tokens from 0", _local_turns
    ROTARY = "rotary", "Rotary positions are not applied as asked", _no_turns
    NOT_REDUCED = (
        "not_reduced",
        "Gradients of keys and values are not reduced: each rank holds only its own queries' part",
        _not_reduced,
    )
    AVERAGED = "averaged", "Gradients are reduced with a wrong factor: the ranks' parts are summed once", _averaged
    OWN_KEYS = "own_keys", "Ranks do not exchange keys: each rank's queries see its own keys alone", _own_keys
    LOCAL_MASK = "local_mask", "The mask is not sharded: each rank takes the mask of the first queries", _local_mask
    DOCUMENTS = "documents", "Documents are not separated: queries see keys of other documents", _documents
    WINDOW = "window", "The window is off by one", _window
    NO_WINDOW = "no_window", "The window is ignored", _no_window
    ALIGNMENT = (
        "alignment",
        "The causal diagonal starts in the top left corner: LongCA aligns the last query with the last key",
        _alignment,
    )
    DIAGONAL = "diagonal", "The causal diagonal is off by one", _diagonal
    TRANSPOSED = "transposed", "The mask is transposed: keys see queries", _transposed
    IGNORED = "ignored", "The mask is ignored", _ignored
    SCALE = "scale", "The softmax scale is wrong", _scale
    HEADS = "heads", "Query heads read wrong KV heads: a KV head serves neighbouring query heads", _heads
    PRECISION = "precision", "The precision is lower than that of the inputs", _precision


def explain(asked: Asked, results: _Results) -> dict[Mistake, str]:
    """The mistakes that give these results, each with details. Empty if none does.

    All results must be those of the mistake, or else the output alone if it is wrong.

    Args:
        asked: The call.
        results: The function's results, at least one of which is wrong.
    """
    if max(asked.problem.concrete_mask.seqlen_q, asked.problem.concrete_mask.seqlen_k) > MOST_TOKENS:
        return {}
    found: dict[Mistake, str] = {}
    out = {} if check_values({"out": results["out"]}, right(asked)).passed else {"out": results["out"]}
    forward: dict[Mistake, str] = {}
    for mistake in Mistake:
        try:
            for detail, matches in mistake.guesses(asked):
                if matches(results):
                    found.setdefault(mistake, detail)
                elif out and matches(out):
                    forward.setdefault(mistake, detail)
        except MaskError:  # the mask of this mistake has too many slices
            continue
    return found or forward
