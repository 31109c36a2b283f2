"""The old name of `longca_transformers`, which has a distribution of its own. It is deprecated."""

import sys
import warnings
from importlib import import_module

warnings.warn("import longca_transformers instead of longca.integrations.transformers", DeprecationWarning, 2)
sys.modules[__name__] = import_module("longca_transformers")
