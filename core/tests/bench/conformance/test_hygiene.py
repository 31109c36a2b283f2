"""Checks of plugins whose modules behave otherwise when they are imported again in a fresh process."""

import pytest

from longca.errors import PluginError
from longca_bench.conformance import hygiene

MODULES = {
    "exits": ("import os; os._exit(0)", "the import of exits ends its process"),
    "fails": ("import os; os._exit(3)", "fails cannot be imported: its process exited with code 3"),
    "raises": ("raise ValueError('no \\x1b[31mlibrary')", "raises cannot be imported: .* ValueError: no .*library"),
    "hangs": ("import time; time.sleep(600)", "the import of hangs in a fresh process took more than 3.0 seconds"),
    "prints": ("import atexit; atexit.register(print, '{}')", "the import of prints ends .* writes to its output"),
    "nests": ("import atexit; atexit.register(print, '[' * 10**5)", "the import of nests .* writes to its output"),
    "bytes": ("import os; os.write(2, b'\\xff' * 9); os._exit(1)", "bytes cannot be imported"),
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_that_ends_or_holds_up_a_fresh_process_is_named(tmp_path, monkeypatch, module):
    code, said = MODULES[module]
    (tmp_path / f"{module}.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(hygiene, "_SECONDS", 3.0)
    with pytest.raises(PluginError, match=said) as refused:
        hygiene._import_afresh(module)
    assert str(refused.value).isprintable()
