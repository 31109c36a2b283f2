"""The working folder: modules that lie there are not imported, neither by commands nor by processes that they start."""

import json
import os
import sys
from pathlib import Path

import pytest

from longca.import_path import import_path

from .fake_plugins import NO, VETO, provides

#: Names of modules that LongCA, its libraries and Python import after their start.
TRAPS = ("json", "torch", "numpy", "pydantic", "typer", "sitecustomize", "usercustomize", "pluggy", "hooked", "socket")
#: A plugin in the import path of the user, whose hook imports a module that lies in the working folder too.
HOOKED = provides("hooked") + VETO.format(body=f"import json, pluggy\n    if problem.heads_q == 3: {NO}")
SCRIPT = Path(sys.executable).with_name("longca")


@pytest.fixture
def trapped(fakes):
    """A working folder with modules that end the process, and a plugin elsewhere."""
    fakes.add("hooked", HOOKED)
    for name in TRAPS:
        (fakes.root / f"{name}.py").write_text("import os; open('trapped', 'a').write(__name__); os._exit(9)\n")
    return fakes


def run(fakes, way, *arguments):
    ran = {
        "module": lambda: fakes.python("-m", "longca", *arguments),
        "script": lambda: fakes.python(str(SCRIPT), *arguments),
        "safe": lambda: fakes.python("-P", "-m", "longca", *arguments),
    }[way]()
    assert (ran.returncode, (fakes.root / "trapped").exists()) == (0, False), ran.stderr
    return ran.stdout


@pytest.mark.parametrize("way", ["module", "script", "safe"])
def test_a_command_imports_nothing_of_the_working_folder(trapped, way):
    listed = {plugin["name"]: plugin for plugin in json.loads(run(trapped, way, "plugins", "--json"))}
    assert (listed["hooked"]["kernels"], listed["hooked"]["problems"]) == (["hooked"], [])
    assert "hooked" in run(trapped, way, "run", "causal", "--seqlen", "64", "--dry-run")
    one = ("causal", "--seqlen", "64", "--heads", "2:1", "--head-dim", "16", "--dtype", "float32", "--device", "cpu")
    assert "1 case: 1 ok" in run(trapped, way, "run", *one, "--direction", "forward", "--kernel", "naive")


#: A program with torch, beside which a fork is not safe. The working folder is on its path, as in a notebook.
PROGRAM = """
import sys
here = sys.path.pop(0)
import torch, longca.plugins
from longca import Device, Problem, masks
problem = Problem(mask=masks.build("causal", 64), heads_q=4, device=Device("cpu"))
sys.path.insert(0, here)
found = longca.plugins.registry(guarded=True)
assert found.resolve("hooked", problem).valid
"""


def test_a_new_process_imports_nothing_of_the_working_folder(trapped):
    ran = trapped.python("-c", PROGRAM)
    assert (ran.returncode, ran.stderr, (trapped.root / "trapped").exists()) == (0, "", False)


@pytest.mark.parametrize(
    ("first", "kept"), [("", False), (".", False), ("{cwd}", False), ("/", True), ("{longca}", True)]
)
def test_the_first_entry_goes_if_it_is_the_working_folder(monkeypatch, tmp_path, first, kept):
    longca = Path(import_path.__code__.co_filename).parents[1]
    monkeypatch.chdir(longca if first == "{longca}" else tmp_path)
    first = first.format(cwd=tmp_path, longca=longca)
    monkeypatch.setattr(sys, "path", [first, "/one", "", os.getcwd(), "/two"])
    assert import_path() == [*[first] * kept, "/one", os.getcwd(), "/two"]
