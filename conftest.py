"""Imports the distributions whose folder is named as their package, before pytest does so by the folder.

In its importlib mode pytest names a test module by its path, `longca_flashattn.tests.test_calls`, and would make an
empty module of the parent where none is there yet.
"""

import importlib
from pathlib import Path

for folder in Path(__file__).parent.glob("longca_*"):
    importlib.import_module(folder.name)
