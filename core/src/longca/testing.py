"""Testing kernels: the door of `longca_bench.conformance` for a plugin's own tests, and for other harnesses.

`conformance` applies every check to every offer of a plugin's kernels, in two lines of pytest. `verify` holds one
kernel against float64 attention on one mask, with or without pytest. `check` holds any function of q, k and v against
float64 attention, and says what is wrong in known ways.
"""

from longca_bench.conformance import CHECKS, NotApplicableError, OfferVariant, conformance, verify
from longca_bench.functions.check import FunctionCheck, check

__all__ = [
    "CHECKS",
    "FunctionCheck",
    "NotApplicableError",
    "OfferVariant",
    "check",
    "conformance",
    "verify",
]
