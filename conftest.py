"""The profiles of Hypothesis: the same examples every time in CI, and fresh ones on a developer's machine.

Imports the distributions whose folder is named as their package, before pytest does so by the folder.

In its importlib mode pytest names a test module by its path, `longca_flashattn.tests.test_calls`, and would make an
empty module of the parent where none is there yet.
"""

import importlib
import os
from pathlib import Path

from hypothesis import HealthCheck, settings

#: A shared machine may be slow in any example.
_COMMON = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", _COMMON)
settings.register_profile("ci", _COMMON, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

for folder in Path(__file__).parent.glob("longca_*"):
    importlib.import_module(folder.name)
