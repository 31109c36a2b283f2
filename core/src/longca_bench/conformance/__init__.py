"""Conformance: whether kernels do as their manifests say. A plugin imports the public names from `longca.testing`.

| module | |
|---|---|
| `offer_variant` | one offer of a kernel in one dtype and direction |
| `problems`, `masks` | the problems on which it is verified |
| `isolation` | the worker in which a kernel runs |
| `oracle` | the findings of a kernel on a problem |
| `offers` | the findings of `longca verify` |
| `checks`, `plugin_checks`, `suite` | the pytest tests of a plugin |
| `kept_verdicts` | what this machine keeps of a verification |
"""

from longca_bench.conformance.checks import CHECKS
from longca_bench.conformance.offer_variant import NotApplicableError, OfferVariant
from longca_bench.conformance.oracle import verify
from longca_bench.conformance.plugin_checks import KERNEL_CHECKS, PLUGIN_CHECKS
from longca_bench.conformance.suite import conformance

__all__ = ["CHECKS", "KERNEL_CHECKS", "PLUGIN_CHECKS", "NotApplicableError", "OfferVariant", "conformance", "verify"]
