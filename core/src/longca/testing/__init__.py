"""Testing kernels: what a plugin's own tests use.

`conformance` applies every check to every offer of a plugin's kernels, in two lines of pytest; `verify` holds one
kernel against float64 attention on one mask, with or without pytest.
"""

from longca.testing.checks import CHECKS
from longca.testing.hygiene import KERNEL_CHECKS, PLUGIN_CHECKS
from longca.testing.subject import NotApplicableError, Subject
from longca.testing.suite import conformance
from longca.testing.verification import verify

__all__ = ["CHECKS", "KERNEL_CHECKS", "PLUGIN_CHECKS", "NotApplicableError", "Subject", "conformance", "verify"]
