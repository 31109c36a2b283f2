"""Conformance: whether kernels do as their manifests say.

`longca verify` and the conformance suite share one road: the subjects of a kernel (`subject.py`), their problems
(`problems.py`, `masks.py`, `blocks.py`), the worker in which a kernel runs (`road.py`), and the findings of a kernel
on a problem (`oracle.py`). `offers.py` makes the findings of `longca verify`. `checks.py`, `hygiene.py` and `suite.py`
make the tests of the suite. A plugin imports all public names from `longca.testing`.
"""

from longca_bench.conformance.checks import CHECKS
from longca_bench.conformance.hygiene import KERNEL_CHECKS, PLUGIN_CHECKS
from longca_bench.conformance.oracle import verify
from longca_bench.conformance.subject import NotApplicableError, Subject
from longca_bench.conformance.suite import conformance

__all__ = ["CHECKS", "KERNEL_CHECKS", "PLUGIN_CHECKS", "NotApplicableError", "Subject", "conformance", "verify"]
