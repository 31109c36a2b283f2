"""A kernel's manifest for tests that are about its offers."""

from longca.manifests import KernelManifest


def fake_manifest(*offers, **fields):
    """The manifest of a kernel that is not there, with these offers."""
    usual = {"name": "fake", "title": "Fake", "upstream": "-", "license": "MIT", "family": "fake"}
    return KernelManifest(**{**usual, "implementation": "fake:Fake", "offers": offers, **fields})
