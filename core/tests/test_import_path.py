"""Modules of the working folder are not imported, neither by commands nor by processes that they start.

Neither is what a distribution offers to pydantic and torch.
"""

import json
import os
import sys
from pathlib import Path
from textwrap import dedent, indent

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


@pytest.mark.sampled(3)
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


#: Modules that `python -m longca` imports before it leaves the working folder. A user starts it so, LongCA never.
EARLY = ("pkgutil", "fnmatch", "multiprocessing", "torch/distributed")

#: Ways in which LongCA starts Python. Each leaves the code of how it ended, or has none.
STARTS = {
    "the judge, the keeper and the worker": """
        from longca_bench.cli import main
        sys.argv = "longca run causal --seqlen 32 --heads 2:1 --head-dim 16 --dtype float32 --device cpu".split()
        sys.argv += "--direction forward --kernel naive".split()
        main()
    """,
    "jobs of a verification": """
        from longca_bench.cli import main
        sys.argv = "longca verify --kernel hooked --jobs 2 --device cpu".split()
        main()
    """,
    "ranks": """
        from longca_bench.ranks.launch import launch
        code = launch(2, ["plugins", "--json"])
    """,
    "the verification of an unverified kernel": """
        from longca.kernels.verify_first import _run
        assert "Error" not in _run(registry(), "naive")
    """,
    "the check that listing a plugin imports little": """
        from longca_bench.conformance.hygiene import light_import
        found = registry()
        asked = found, next(plugin for plugin in found.plugins if plugin.module == "hooked")
        light_import(*asked)  # this process has now imported what it needs
        sys.path.insert(0, "")
        light_import(*asked)
    """,
    "the worker of a test": """
        from longca import Device, masks
        from longca.testing import verify
        verify("naive", masks.build("causal", 32), device=Device("cpu"))
    """,
    "the hosts of plugins beside torch": """
        import torch
        assert "hooked" in registry(guarded=True).kernels
    """,
    "copies between GPUs": """
        from longca_bench.measuring.peer_access import measure_peer_access
        measure_peer_access()
    """,
    "two equal runs": """
        from longca_bench.measuring.repeatability import measure_repeatability
        try:
            measure_repeatability(["--help"], "pydoc")
        except LongCAError as error:
            assert "the timing ended with code 0" in str(error), error
    """,
}
#: A module that pydantic and torch import by its entry points. It notes the command of each process.
FOREIGN = """
with open({path!r}, "a") as marks, open("/proc/self/cmdline") as command:
    marks.write(command.read() + "\\n")

class Plugin:
    def new_schema_validator(self, *arguments, **more):
        return None, None, None

plugin = Plugin()

def load():
    pass
"""
ENTRIES = "[pydantic]\nforeign = foreign:plugin\n[torch.backends]\nforeign = foreign:load\n"

#: A program in another folder, so that Python itself has not put the working folder on its path.
BEFORE = """
import sys
from longca.errors import LongCAError
from longca.plugins import registry

code = 0

if __name__ == "__main__":
"""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("way", STARTS)
def test_a_started_process_imports_no_working_folder_and_no_foreign_entry_point(trapped, way, tmp_path_factory):
    for name in EARLY:
        (trapped.root / name).parent.mkdir(exist_ok=True)
        (trapped.root / f"{name}.py").write_text((trapped.root / "json.py").read_text())
    foreign = trapped.add("foreign", FOREIGN.format(path=str(trapped.root / "marks")), prelude=False)
    next(foreign.glob("*.dist-info/entry_points.txt")).write_text(ENTRIES)
    program = tmp_path_factory.mktemp("elsewhere") / "program.py"
    lines = indent(dedent(STARTS[way]) + "sys.exit(code)", "    ")
    program.write_text(BEFORE + lines)
    ran = trapped.python(str(program), OMP_NUM_THREADS="1")
    assert not (trapped.root / "trapped").exists(), ran.stderr
    assert ran.returncode == (1 if way == "jobs of a verification" else 0), ran.stderr
    marks = (trapped.root / "marks").read_text().splitlines()
    assert marks, "it is imported where the user starts Python"
    assert all("program.py" in mark for mark in marks), marks


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "way", [("-m", "longca"), ("-P", "-m", "longca"), (str(SCRIPT),)], ids=["module", "safe", "script"]
)
def test_a_function_of_the_working_folder_is_found(fakes, way):
    """The working folder is asked for here, also where Python does not put it on the path."""
    (fakes.root / "mine.py").write_text(
        "import torch\ndef attention(q, k, v, causal):\n"
        "    q, k, v = (x.transpose(0, 1) for x in (q, k, v))\n"
        "    found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)\n"
        "    return found.transpose(0, 1)\n"
    )
    asked = (
        "--function",
        "mine:attention",
        "--mask",
        "causal",
        "--seqlen",
        "64",
        "--head-dim",
        "16",
        "--device",
        "cpu",
    )
    ran = fakes.python(*way, "verify", *asked)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("first", "kept"), [("", False), (".", False), ("{cwd}", False), ("/", True), ("{longca}", True)]
)
def test_the_first_entry_goes_if_it_is_the_working_folder(monkeypatch, tmp_path, first, kept):
    longca = Path(import_path.__code__.co_filename).parents[1]
    monkeypatch.chdir(longca if first == "{longca}" else tmp_path)
    first = first.format(cwd=tmp_path, longca=longca)
    monkeypatch.setattr(sys, "path", [first, "/one", "", os.getcwd(), "/two"])
    assert import_path() == [*[first] * kept, "/one", os.getcwd(), "/two"]
