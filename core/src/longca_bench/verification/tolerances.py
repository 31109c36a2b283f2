"""Tolerances: how far a right result may be from its reference, beside PyTorch's own error in the same dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from longca_bench.verification.reference import USUAL_LSE

__all__ = ["COUNT_LIMIT", "HALF_ULPS", "LSE_LIMITS", "WIDE_ULPS", "lse_limit", "rounding_floor"]

#: Ulps of float32 (float64 for float64) of a row's spread that an error may have, from the exponent s − lse. For
#: standard normal inputs s reaches 8 and lse 16. Half an ulp of each is 4 and 8 ulps of 1. Kernels convert bases too.
#: A larger lse has larger ulps. Scores that are rounded to 16 bits show in PyTorch's own error.
WIDE_ULPS = 32.0
#: Further ulps of bfloat16 and float16, from the weights and the result.
HALF_ULPS = 1.0
#: Largest error of lse, relative to the larger of |lse| and 1, by the tensors' precision. Kernels for 16 bits cap
#: scores by NVIDIA's tanh.approx, whose relative error is 2⁻¹¹.
LSE_LIMITS = {"wide": 2.0**-17, "half": 2.0**-13, "capped half": 2.0**-10}
#: Finest limit of counts. Counts up to 8192 visible keys are exact, and larger ones to one part in 16 K.
COUNT_LIMIT = 2.0**-14


def lse_limit(lse: Tensor, dtype: torch.dtype, *, rough: bool, capped: bool = False) -> Tensor:
    """The largest error of each right lse that passes, by the dtype, whether the offer is rough, and soft caps."""
    precision = "wide" if dtype.itemsize > 2 else "capped half" if capped else "half"
    limit = LSE_LIMITS[precision] * lse.abs().clamp_min(1.0)
    # A sum of rounded weights has no larger relative error than each weight.
    return limit + torch.finfo(dtype).eps / 2 if rough else limit


def rounding_floor(dtype: torch.dtype, largest_lse: float) -> float:
    """The part of a row's spread that rounding alone may take."""
    wide = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    wide *= largest_lse / USUAL_LSE
    return WIDE_ULPS * wide + (HALF_ULPS * torch.finfo(dtype).eps if dtype.itemsize == 2 else 0.0)
