"""Fixtures of `core_alone` for every test here."""

from ..core_alone import *  # noqa: F403
from ..core_alone import _core_alone, _one_thread, pytest_runtest_setup

__all__ = ["_core_alone", "_one_thread", "pytest_runtest_setup"]
