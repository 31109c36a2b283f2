"""Hypothesis profiles: the same examples every time in CI, fresh ones on a developer's machine; and fake plugins."""

import os

import pytest
from hypothesis import HealthCheck, settings

from .fake_plugins import FakePlugins

_COMMON = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", _COMMON)
settings.register_profile("ci", _COMMON, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture
def fakes(tmp_path):
    """Temporary distributions and a Python that sees them, with a cache folder of their own."""
    return FakePlugins(tmp_path)
