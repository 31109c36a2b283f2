"""The right results of a call, with rotary positions if the function turns q and k by itself.

A rotation changes no row's length, so the limits of the rotated tensors hold for the gradients of the given ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.kernels.base import torch_dtype
from longca.manifests import Problem
from longca_bench.functions.arguments import positions
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference, Rows, reference

__all__ = ["Asked", "Rotary", "right", "rotate", "turned_back"]


@dataclass(frozen=True)
class Rotary:
    """Rotary positions. Source: RoFormer (arXiv 2104.09864), with the halves of Hugging Face's `rotate_half`.

    Attributes:
        base: The base of the frequencies, such as 10000.
        at: The position of each token.
        interleaved: Whether neighbouring elements are a pair, as in GPT-J. Else the two halves are.
    """

    base: float
    at: NDArray[np.int64]
    interleaved: bool = False


@dataclass(frozen=True)
class Asked:
    """One sequence of a call.

    Attributes:
        problem: The problem.
        inputs: The tensors.
        rotary: The rotary positions that the function applies to q and k. None for no positions.
        tokens: The tokens of each rank, in the order of its shard. Empty on one device.
    """

    problem: Problem
    inputs: Inputs
    rotary: Rotary | None = None
    tokens: tuple[NDArray[np.int64], ...] = ()

    @classmethod
    def of(
        cls, problem: Problem, inputs: Inputs, base: float | None = None, tokens: tuple[NDArray[np.int64], ...] = ()
    ) -> Asked:
        """A sequence with the positions of its mask.

        Args:
            problem: The problem.
            inputs: The tensors.
            base: The base of rotary positions, or None for no positions.
            tokens: The tokens of each rank. Empty on one device.
        """
        rotary = None if base is None else Rotary(base, positions(problem.concrete_mask))
        return cls(problem, inputs, rotary, tokens)

    def turned_before(self) -> Asked:
        """The sequence whose tensors are these after the rotation, but for rounding."""
        if self.rotary is None:
            return self
        q, k = (rotate(x, self.rotary, back=True) for x in (self.inputs.q, self.inputs.k))
        return replace(self, inputs=replace(self.inputs, q=q, k=k))

    @property
    def turned(self) -> Inputs:
        """The tensors after the rotation, in float64. Without positions, the tensors themselves."""
        if self.rotary is None:
            return self.inputs
        q, k = (rotate(x.double(), self.rotary) for x in (self.inputs.q, self.inputs.k))
        return replace(self.inputs, q=q, k=k)


def rotate(x: Tensor, rotary: Rotary, *, back: bool = False) -> Tensor:
    """Turns tokens by their positions.

    Args:
        x: [T, H, D].
        rotary: The positions.
        back: Whether to turn them back.
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    half = x.shape[-1] // 2
    turns = rotary.base ** -(torch.arange(half, device=x.device, dtype=wide) / half)
    angles = torch.as_tensor(rotary.at, dtype=wide, device=x.device)[:, None, None] * turns
    cos, sin = angles.cos(), angles.sin() * (-1 if back else 1)
    first, second = (
        x.unflatten(-1, (half, 2)).unbind(-1) if rotary.interleaved else x.unflatten(-1, (2, half)).unbind(-2)
    )
    pairs = first * cos - second * sin, first * sin + second * cos
    return torch.stack(pairs, -1 if rotary.interleaved else -2).flatten(-2).to(x.dtype)


def right(asked: Asked) -> Reference:
    """The reference of a sequence. Its gradients are those of the tensors before the rotation."""
    exact = reference(asked.problem, asked.turned)
    return exact if asked.rotary is None else turned_back(asked, _with_rounded_turns(asked, exact))


def turned_back(asked: Asked, expected: Reference) -> Reference:
    """A reference with the gradients of q and k before the rotation."""
    if asked.rotary is None:
        return expected
    rows = dict(expected.rows)
    for name in ("dq", "dk"):
        if name in rows:
            rows[name] = replace(rows[name], value=rotate(rows[name].value, asked.rotary, back=True))
    return replace(expected, rows=rows)


def _with_rounded_turns(asked: Asked, exact: Reference) -> Reference:
    """Limits that allow the rounding of a rotation in the tensors' dtype, with angles in float32."""
    assert asked.rotary is not None
    low = torch_dtype(asked.problem.dtype)
    q, k = (rotate(x.to(low), asked.rotary) for x in (asked.inputs.q, asked.inputs.k))
    rounded = reference(asked.problem, replace(asked.inputs, q=q, k=k))

    def widened(name: str) -> Rows:
        rows = exact.rows[name]
        moved = (rounded.rows[name].value - rows.value).norm(dim=-1)
        share = float((moved / rows.spread).nan_to_num(nan=0.0, posinf=0.0).amax())
        return replace(rows, pytorch=rows.pytorch + share * rows.spread)

    return replace(exact, rows={name: widened(name) for name in exact.rows})
