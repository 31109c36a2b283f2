"""References of functions that turn q and k by rotary positions themselves.

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
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference, Rows, reference

__all__ = ["Rotary"]


@dataclass(frozen=True)
class Rotary:
    """Rotary positions. Source: RoFormer (arXiv 2104.09864), with the halves of Hugging Face's `rotate_half`.

    Attributes:
        base: The base of the frequencies, such as 10000.
        at: The position of each token.
    """

    base: float
    at: NDArray[np.int64]

    def rotate(self, x: Tensor, *, back: bool = False) -> Tensor:
        """Turns tokens [T, H, D] by their positions, or back."""
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        half = x.shape[-1] // 2
        turns = self.base ** -(torch.arange(half, device=x.device, dtype=wide) / half)
        angles = torch.as_tensor(self.at, dtype=wide, device=x.device)[:, None, None] * turns
        cos, sin = angles.cos(), angles.sin() * (-1 if back else 1)
        first, second = x.unflatten(-1, (2, half)).unbind(-2)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)

    def turned(self, inputs: Inputs, *, back: bool = False) -> Inputs:
        """The tensors with q and k turned."""
        return replace(inputs, q=self.rotate(inputs.q, back=back), k=self.rotate(inputs.k, back=back))

    def reference(self, problem: Problem, inputs: Inputs) -> Reference:
        """The reference of a function that turns q and k. Its gradients are those before the rotation.

        Limits allow the rounding of a rotation in the tensors' dtype, with angles in float32.
        """
        low = torch_dtype(problem.dtype)
        exact = reference(problem, self.turned(replace(inputs, q=inputs.q.double(), k=inputs.k.double())))
        rounded = reference(problem, self.turned(replace(inputs, q=inputs.q.to(low), k=inputs.k.to(low))))

        def widened(name: str) -> Rows:
            rows = exact.rows[name]
            moved = (rounded.rows[name].value - rows.value).norm(dim=-1)
            share = float((moved / rows.spread).nan_to_num(nan=0.0, posinf=0.0).amax())
            value = self.rotate(rows.value, back=True) if name in ("dq", "dk") else rows.value
            return replace(rows, value=value, pytorch=rows.pytorch + share * rows.spread)

        return replace(exact, rows={name: widened(name) for name in exact.rows})
