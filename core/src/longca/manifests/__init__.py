"""Manifests of kernels and strategies, problems, and verdicts on whether a kernel takes a problem. Torch-free."""

from longca.manifests.kernel import API_VERSION, KernelManifest, Manifest
from longca.manifests.offers import Backward, Offer
from longca.manifests.packages import installed_version, missing
from longca.manifests.problem import Device, Direction, Problem
from longca.manifests.resolve import resolve_manifest
from longca.manifests.strategy import Layout, Step, StrategyManifest, StrategyMemory, Transport
from longca.manifests.verdict import Reason, Verdict

__all__ = [
    "API_VERSION",
    "Backward",
    "Device",
    "Direction",
    "KernelManifest",
    "Layout",
    "Manifest",
    "Offer",
    "Problem",
    "Reason",
    "Step",
    "StrategyManifest",
    "StrategyMemory",
    "Transport",
    "Verdict",
    "installed_version",
    "missing",
    "resolve_manifest",
]
