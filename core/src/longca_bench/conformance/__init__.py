"""Testing kernels: what a plugin's own tests use.

`conformance` applies every check to every offer of a plugin's kernels, in two lines of pytest; `verify` holds one
kernel against float64 attention on one mask, with or without pytest.
"""

from longca_bench.conformance.checks import CHECKS
from longca_bench.conformance.hygiene import KERNEL_CHECKS, PLUGIN_CHECKS
from longca_bench.conformance.subject import NotApplicableError, Subject
from longca_bench.conformance.suite import conformance
from longca_bench.conformance.verification import verify

__all__ = ["CHECKS", "KERNEL_CHECKS", "PLUGIN_CHECKS", "NotApplicableError", "Subject", "conformance", "verify"]
