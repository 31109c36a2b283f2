"""Conformance: whether kernels do as their manifests say. A plugin imports the public names from `longca.testing`.

| module | |
|---|---|
| `offer_variant` | one offer of a kernel in one dtype and direction |
| `problems`, `masks` | the problems on which it is verified |
| `isolation`, `oracle` | the worker in which a kernel runs, and its findings on a problem |
| `offers`, `kept_verdicts` | `longca verify`, and what this machine keeps of it |
| `checks`, `plugin_checks`, `suite` | the pytest tests of a plugin |
"""

from longca_bench.conformance.checks import CHECKS
from longca_bench.conformance.offer_variant import NotApplicableError, OfferVariant
from longca_bench.conformance.oracle import verify
from longca_bench.conformance.suite import conformance

__all__ = ["CHECKS", "NotApplicableError", "OfferVariant", "conformance", "verify"]
