"""Testing kernels: the door of `longca_bench.conformance` for a plugin's own tests.

`conformance` applies every check to every offer of a plugin's kernels, in two lines of pytest. `verify` holds one
kernel against float64 attention on one mask, with or without pytest.
"""

from longca_bench.conformance import (
    CHECKS,
    KERNEL_CHECKS,
    PLUGIN_CHECKS,
    NotApplicableError,
    Subject,
    conformance,
    verify,
)

__all__ = ["CHECKS", "KERNEL_CHECKS", "PLUGIN_CHECKS", "NotApplicableError", "Subject", "conformance", "verify"]
