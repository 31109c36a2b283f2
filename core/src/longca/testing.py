"""Testing kernels: the door of `longca_bench.conformance` for a plugin's own tests, and for other harnesses.

`conformance` applies every check to every offer of a plugin's kernels, in two lines of pytest. `verify` holds one
kernel against float64 attention on one mask, with or without pytest. `check` holds any function of q, k and v against
float64 attention, and names what is wrong in known ways.
"""

from longca_bench.conformance import (
    CHECKS,
    KERNEL_CHECKS,
    PLUGIN_CHECKS,
    NotApplicableError,
    OfferVariant,
    conformance,
    verify,
)
from longca_bench.functions.check import FunctionCheck, check
from longca_bench.functions.mistakes import Mistake

__all__ = [
    "CHECKS",
    "KERNEL_CHECKS",
    "PLUGIN_CHECKS",
    "FunctionCheck",
    "Mistake",
    "NotApplicableError",
    "OfferVariant",
    "check",
    "conformance",
    "verify",
]
