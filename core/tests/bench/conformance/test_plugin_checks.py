"""`light_import`: a plugin's module that is heavy, or that fails in a fresh process, is named."""

from types import SimpleNamespace

import pytest

from longca.errors import PluginError
from longca_bench.conformance import plugin_checks

MODULES = {
    "light": ("import json", None),
    "exits": ("import os; os._exit(3)", "exits cannot be imported: its process exited with code 3"),
    "raises": ("raise ValueError('no library')", "raises cannot be imported: .* ValueError: no library"),
    "hangs": ("import time; time.sleep(600)", "the import of hangs in a fresh process took more than 3.0 seconds"),
    "heavy": ("import torch", "importing heavy imports torch; every listing imports heavy"),
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_that_fails_or_is_heavy_in_a_fresh_process_is_named(core, tmp_path, monkeypatch, module):
    code, said = MODULES[module]
    (tmp_path / f"{module}.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugin_checks, "_SECONDS", 3.0 if module == "hangs" else 100.0)
    plugin = SimpleNamespace(module=module, kernels=())
    if said is None:
        plugin_checks.light_import(core, plugin)
        return
    with pytest.raises(PluginError, match=said):
        plugin_checks.light_import(core, plugin)
