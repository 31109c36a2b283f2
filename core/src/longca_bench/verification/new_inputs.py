"""New inputs: those of a problem with a sign for each token and for each element of a head, and their reference.

There are more than 2^D ways to draw them, and no rounding differs. No earlier result has anything to do with theirs, so
their reference is computed anew, at some tokens of all heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from random import Random

import torch
from torch import Tensor

from longca.manifests import Direction, Problem
from longca_bench.verification.head_sample import HeadSample
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference, Rows, gradients_of_part, reference, reference_of_all
from longca_bench.verification.rows import rows_at

__all__ = ["OF_KEYS", "TOKENS", "Signs", "reference_at"]

#: Tokens at which the results of a call are compared.
TOKENS = 16
#: Results with a row for each key. Others have one for each query.
OF_KEYS = ("dk", "dv")
#: Most elements of a tensor that a reference at some tokens computes at a time: 128 MiB in float64. It has one KV head
#: with its query heads at least.
_ELEMENTS = 2**24


class Signs:
    """Signs of the tokens and the elements of one input.

    Args:
        shape: Tokens, heads and elements of the input.
        random: The source of random numbers.
        device: The device. On a CPU equal numbers give equal signs wherever they are drawn.
    """

    def __init__(self, shape: torch.Size, random: Random, device: torch.device) -> None:
        tokens, heads, width = shape
        generator = torch.Generator(device).manual_seed(random.getrandbits(63))
        self._of_token, self._of_element = (
            torch.randint(0, 2, each, generator=generator, device=device, dtype=torch.int8).mul_(2).sub_(1)
            for each in ((tokens, heads, 1), (1, heads, width))
        )

    def write(self, given: Tensor, new: Tensor, rows: Tensor | None = None, heads: slice = slice(None)) -> None:
        """Writes a new input.

        Args:
            given: The input as it was drawn, or some of its tokens and heads: [T, H, D].
            new: The tensor for the new one, of the same shape.
            rows: The tokens of `given`, or None for all tokens.
            heads: The heads of `given`.
        """
        of_token = self._of_token if rows is None else self._of_token[rows.to(self._of_token.device)]
        torch.mul(given, self._of_element[:, heads].to(given), out=new).mul_(of_token[:, heads].to(given))


def reference_at(
    problem: Problem, inputs: Inputs, tokens: Tensor, forward: Mapping[str, Tensor], *, of_keys: bool, like: torch.dtype
) -> Reference:
    """The reference at some tokens of all heads.

    Gradients of keys need the lse of all queries. If the kernel gives none, it is computed here. If that would take
    many minutes for all heads, the reference has heads that are drawn anew.

    Args:
        problem: The problem.
        inputs: Its inputs.
        tokens: The tokens, of queries or of keys: int64.
        forward: A backward's out [Tq, Hq, D] and lse [Hq, Tq]. An lse that holds NaN was not given.
        of_keys: Whether the tokens are keys, for dk and dv. Else they are queries, and a backward has out and lse too.
        like: The data type of the computing.
    """
    sample, forward = None, dict(forward)
    if not of_keys:
        forward = {name: rows_at(name, x, tokens) for name, x in forward.items()}
    elif forward["lse"].isnan().any():
        whole = reference(problem.in_direction(Direction.FORWARD), inputs)
        if (sample := whole.sample) is not None:
            problem, inputs = sample.problem(problem), sample.inputs(inputs)
            forward["out"] = sample.of("out", forward["out"])
        forward["lse"] = whole.lse.to(forward["lse"].dtype)
    mask = problem.concrete_mask
    some = [(token, token + 1) for token in tokens.tolist()]
    ranges = ([(0, mask.seqlen_q)], some) if of_keys else (some, [(0, mask.seqlen_k)])
    part = {name: rows_at(name, getattr(inputs, name), tokens) for name in (("k", "v") if of_keys else ("q", "dout"))}
    here, given = problem.with_mask(mask.cut(*ranges)), replace(inputs, **part)
    found = [
        _of_tokens(
            _of_heads(
                heads.problem(here),
                heads.inputs(given),
                {name: heads.of(name, x) for name, x in forward.items()},
                of_keys=of_keys,
                like=like,
            ),
            of_keys=of_keys,
        )
        for heads in _portions(here)
    ]
    return replace(_joined(found), problem=here, sample=sample)


def _portions(here: Problem) -> Iterator[HeadSample]:
    """All heads, so many at a time that memory stays in bounds, whether there are many queries or many keys."""
    mask, count = here.concrete_mask, here.num_heads_kv
    group = here.heads_q // count
    q, k, scores = group * mask.seqlen_q * here.head_dim, mask.seqlen_k * here.head_dim, mask.seqlen_q * mask.seqlen_k
    step = max(1, _ELEMENTS // max(q, k, group * scores))
    for first in range(0, count, step):
        last = min(first + step, count)
        yield HeadSample(tuple(range(first, last)), tuple(range(first * group, last * group)))


def _of_heads(
    here: Problem, given: Inputs, forward: Mapping[str, Tensor], *, of_keys: bool, like: torch.dtype
) -> Reference:
    """The reference of some heads, for a mask of the tokens alone."""
    if here.direction == "forward":
        return reference_of_all(here, given)
    out, lse = forward["out"], forward["lse"]
    if of_keys:  # out and lse of all queries were compared at some of them
        return gradients_of_part(here, given, (out, lse.to(like)), (out, lse))
    right = reference_of_all(here.in_direction(Direction.FORWARD), given)
    own = out, torch.where(lse.isnan(), right.lse.to(lse.dtype), lse)
    found = gradients_of_part(here, given, (right.rows["out"].value, right.lse), own)
    return replace(found, rows={**found.rows, **right.rows})


def _of_tokens(found: Reference, *, of_keys: bool) -> Reference:
    """The rows of the tokens alone. Those of all tokens on the other side would take most of the memory."""
    return replace(found, rows={name: rows for name, rows in found.rows.items() if (name in OF_KEYS) is of_keys})


def _joined(parts: Sequence[Reference]) -> Reference:
    """The reference of the heads of several references, in order."""
    rows = {
        name: Rows(*(torch.cat([getattr(part.rows[name], each.name) for part in parts], 1) for each in fields(Rows)))
        for name in parts[0].rows
    }
    largest = max(part.largest_lse for part in parts)
    return replace(parts[0], rows=rows, lse=torch.cat([part.lse for part in parts]), largest_lse=largest)
