"""New inputs: those of a problem with a sign for each token and for each element of a head, and their reference.

There are more than 2^D ways to draw them, and no rounding differs. No earlier result has anything to do with theirs, so
their reference is computed anew, at some tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from longca.manifests import Direction, Problem
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference, gradients_of_part, reference
from longca_bench.verification.rows import rows_at

__all__ = ["TOKENS", "Signs", "reference_at"]

#: Tokens at which the results of a call are compared.
TOKENS = 16


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
    """The reference at some tokens.

    Args:
        problem: The problem.
        inputs: Its inputs.
        tokens: The tokens, of queries or of keys: int64.
        forward: A backward's out [Tq, Hq, D] and lse [Hq, Tq]. An lse that holds NaN is computed here.
        of_keys: Whether the tokens are keys, for dk and dv. Else they are queries, and a backward has out and lse too.
        like: The data type of the computing.
    """
    mask = problem.concrete_mask
    some = [(token, token + 1) for token in tokens.tolist()]
    ranges = ([(0, mask.seqlen_q)], some) if of_keys else (some, [(0, mask.seqlen_k)])
    part = {name: rows_at(name, getattr(inputs, name), tokens) for name in (("k", "v") if of_keys else ("q", "dout"))}
    here, given = problem.with_mask(mask.cut(*ranges)), replace(inputs, **part)
    if problem.direction == "forward":
        return reference(here, given)
    out, lse = (forward[name] for name in ("out", "lse"))
    if lse.isnan().any():  # the kernel gives none
        lse = reference(_forward(problem), inputs).lse.to(lse.dtype)
    if of_keys:  # out and lse of all queries were compared at some of them
        return gradients_of_part(here, given, (out.to(like), lse.to(like)), (out, lse))
    right = reference(_forward(here), given)
    own = rows_at("out", out, tokens), rows_at("lse", lse, tokens)
    found = gradients_of_part(here, given, (right.rows["out"].value, right.lse), own)
    return replace(found, rows={**found.rows, **right.rows})


def _forward(problem: Problem) -> Problem:
    return replace(problem, direction=Direction.FORWARD)
