"""Guesses: what a function with a known mistake returns.

A guess is the right result of another call, such as one with another mask, so it is compared within the same limits as
a right result. `mask_guesses` has those about masks, and `rank_guesses` those about context parallelism.
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
from longca.masks import from_dense
from longca_bench.functions.oracle import Asked, right, turned_back
from longca_bench.verification.findings import check_values
from longca_bench.verification.reference import Reference, reference

__all__ = [
    "Dense",
    "Guess",
    "Results",
    "empty_rows",
    "equals",
    "heads",
    "no_turns",
    "nothing",
    "precision",
    "scale",
    "swapped",
]

Results = dict[str, Tensor]
Dense = NDArray[np.bool_]
#: A guess: details in words, and whether results are those of the mistake.
Guess = tuple[str, Callable[[Results], bool]]
_USUAL_BASE = 10000.0
_LOG2_E = math.log2(math.e)
#: Tokens that a guess takes for heads, at most.
_MOST_HEADS = 512


def equals(expected: Reference, read: Callable[[Results], Results] | None = None) -> Callable[[Results], bool]:
    """Compares results, read in another order if asked, with those of a mistake."""
    return lambda results: check_values(read(results) if read else results, expected).passed


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


def swapped(asked: Asked) -> Iterator[Guess]:
    """Attention between the heads of each token."""
    mask, x = asked.problem.concrete_mask, asked.inputs
    if not mask.is_square or mask.seqlen_q > _MOST_HEADS or asked.rotary is not None:
        return
    turned = replace(x, **{name: getattr(x, name).transpose(0, 1).contiguous() for name in ("q", "k", "v", "dout")})
    everything = np.ones((x.q.shape[1], x.k.shape[1]), np.bool_)
    for dense, words in (
        (everything, "each head sees all heads"),
        (np.tril(everything), "each head sees earlier ones"),
    ):
        problem = replace(asked.problem.with_mask(from_dense(dense)), heads_q=mask.seqlen_q, heads_kv=mask.seqlen_q)
        expected = right(replace(asked, problem=problem, inputs=turned))
        yield words, equals(expected, lambda results: {name: r.transpose(0, 1) for name, r in results.items()})


def empty_rows(asked: Asked) -> Iterator[Guess]:
    """Wrong outputs in rows that see nothing, and right ones in the others. Gradients are not looked at."""
    mask = asked.problem.concrete_mask
    blind = torch.from_numpy(mask.visible_keys() == 0).T.to(asked.inputs.q.device)  # [Tq, mask heads]
    if not blind.any() or asked.rotary is not None:
        return
    expected = right(replace(asked, problem=asked.problem.in_direction("forward")))
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
