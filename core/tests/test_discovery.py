"""Broken plugins as real distributions in real processes. Each one is left out with a reason, and the others work."""

import json
import os
import time
from pathlib import Path

import pytest

from .fake_plugins import FakePlugins

TIMEOUT_S = 10
ESCAPE = "\x1b[31m"

GOOD = """
@hookimpl
def provide_kernel():
    return kernel("good")
"""
RETURNS = """
@hookimpl
def provide_kernel():
    return {0}
"""
FORKS = """
import os, pathlib, time
child = os.fork()
if child:
    pathlib.Path("orphan").write_text(str(child))
while True:
    time.sleep(1)
"""

#: The code of each plugin, and a part of the message about it.
BROKEN = {
    "raises": ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
    "exits": ("raise SystemExit(3)", "raised SystemExit: 3"),
    "os-exits": ("import os, sys; print('last words', file=sys.stderr, flush=True); os._exit(0)", "last words"),
    "dies": ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
    "waits": ("input()", "EOFError"),
    "hook-raises": ("@hookimpl\ndef provide_kernel(): 1 / 0", "provide_kernel raised ZeroDivisionError"),
    "hook-exits": ("@hookimpl\ndef provide_kernel(): exit()", "provide_kernel raised SystemExit"),
    "hook-os-exits": ("import os\n@hookimpl\ndef provide_kernel(): os._exit(7)", "ended the process with status 7"),
    "none": (RETURNS.format("None"), "provide_kernel returned None; it returns one KernelManifest or several"),
    "generator": (RETURNS.format("iter(int, 1)"), "provide_kernel returned an object of type int"),
    "dict": (RETURNS.format("{}"), "provide_kernel returned an object of type dict"),
    "text": (RETURNS.format("'kernel'"), "provide_kernel returned an object of type str"),
    "invalid": (RETURNS.format("kernel('Not A Name')"), "raised ValidationError: name: String should match pattern"),
    "future": (RETURNS.format("kernel('future', api=(99,))"), "'future' is written for plugin API 99, this is 1"),
    "clash": (RETURNS.format("kernel('sdpa')"), "kernel 'sdpa' of clash is left out: longca-core provides one"),
    "unknown-hook": ("@hookimpl\ndef provide_kernels(): ...", "unknown hook 'provide_kernels'"),
    "signature": ("@hookimpl\ndef provide_kernel(device): ...", "can not be found in the hookspec"),
    "no-hook": ("def provide_kernel(): ...", "it implements no hook"),
    "no-module": (None, "No module named 'no_module'"),
}
HANGING = {"hangs": "import time\nwhile True: time.sleep(1)", "forks": FORKS}


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """One listing of the broken plugins that end, and of a few good ones."""
    fakes = FakePlugins(tmp_path_factory.mktemp("broken"))
    for name, (code, _) in BROKEN.items():
        fakes.add(name, code)
    fakes.add("good", GOOD)
    fakes.add("mixed", RETURNS.format("[kernel('mixed'), 'not one', kernel('mixed'), kernel('naive')]"))
    fakes.add("noisy", GOOD.replace("good", "noisy") + "import os\nprint('noise')\nos.system('echo more')\n")
    fakes.add("slow", GOOD.replace("good", "slow") + "import torch\n")
    fakes.add(f"evil{ESCAPE}[red]", GOOD.replace("good", "evil"), module="evil_names", entry="../../[bold]evil\x07")
    fakes.add("twin-a", GOOD.replace("good", "twin_a"), entry="twin")
    fakes.add("twin-b", GOOD.replace("good", "twin_b"), entry="twin")
    return fakes, fakes.plugins()


@pytest.fixture(scope="module")
def hung(tmp_path_factory):
    """One listing of plugins whose imports never end. Only these meet a short limit, which busy machines reach too."""
    fakes = FakePlugins(tmp_path_factory.mktemp("hanging"))
    for name, code in HANGING.items():
        fakes.add(name, code)
    return fakes, fakes.plugins(LONGCA_PROBE_TIMEOUT=str(TIMEOUT_S))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_left_out_and_said(listed, name):
    plugin = listed[1][name]
    assert plugin["kernels"] == []
    assert len(plugin["problems"]) == 1
    assert BROKEN[name][1] in plugin["problems"][0]
    assert "\n" not in plugin["problems"][0]


@pytest.mark.parametrize("name", HANGING)
def test_a_plugin_that_hangs_is_left_out_and_said(hung, name):
    plugin = hung[1][name]
    assert plugin["kernels"] == []
    assert len(plugin["problems"]) == 1
    assert f"did not end within {TIMEOUT_S} s; if it is only slow, give LONGCA_PROBE_TIMEOUT" in plugin["problems"][0]


def test_the_others_work_and_json_stays_json(listed):
    for name in ("good", "noisy", "slow"):
        assert (listed[1][name]["kernels"], listed[1][name]["problems"]) == ([name], [])


def test_only_the_offending_kernels_are_left_out(listed):
    mixed = listed[1]["mixed"]
    assert mixed["kernels"] == ["mixed"]
    assert len(mixed["problems"]) == 3


def test_two_distributions_may_name_their_entry_points_alike(listed):
    assert [listed[1][name]["kernels"] for name in ("twin-a", "twin-b")] == [["twin_a"], ["twin_b"]]


def test_importing_torch_is_a_warning(listed):
    assert "imports torch" in listed[1]["slow"]["warnings"][0]
    assert listed[1]["good"]["warnings"] == []


def test_no_orphan_stays(hung):
    pid = (hung[0].root / "orphan").read_text()
    status = Path(f"/proc/{pid}/stat")
    deadline = time.monotonic() + 60
    while status.exists() and " Z " not in status.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not status.exists() or " Z " in status.read_text()


def test_names_are_contained(listed):
    fakes, plugins = listed
    assert plugins["evil\\x1b[31m[red]"]["kernels"] == ["evil"]
    shown = fakes.longca("plugins", "--no-plugin", "slow")
    assert ESCAPE not in shown.stdout
    assert "\x07" not in shown.stdout
    assert "evil\\x1b[31m[red] 1.0" in shown.stdout
    assert "../../[bold]evil\\x07 = evil_names" in shown.stdout
    kept = {path.relative_to(fakes.root / "cache").parts[0] for path in (fakes.root / "cache").rglob("*")}
    assert kept == {"plugins"}


def test_a_hang_is_not_waited_for_again(hung):
    ran = hung[0].longca("list-capabilities", "--json", LONGCA_PROBE_TIMEOUT="600")
    assert {"naive", "sdpa"} <= set(json.loads(ran.stdout)["kernels"])


COUNTS = (
    """
import os, pathlib
with open("imports", "a") as file:
    file.write("elsewhere\\n" if "LONGCA_INSIDE_PROBE" in os.environ else "in the command\\n")
"""
    + GOOD
)
PROBED = ["elsewhere"]


def imports(fakes, *arguments, **env):
    """Where a command that lists the kernel `good` imports its plugin, once for each import."""
    path = fakes.root / "imports"
    path.unlink(missing_ok=True)
    ran = fakes.longca(*(arguments or ("list-capabilities", "--json")), **env)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert '"good"' in ran.stdout
    return path.read_text().splitlines() if path.exists() else []


def test_a_plugin_is_probed_once(fakes):
    folder = fakes.add("counts", COUNTS)
    assert imports(fakes) == PROBED
    assert imports(fakes) == []
    assert imports(fakes, "plugins", "--json") == PROBED, "`longca plugins` looks at every plugin anew"
    assert imports(fakes, "plugins", "--json", "--reprobe") == PROBED * 2
    (folder / "counts.py").write_text((folder / "counts.py").read_text() + "\n# edited, as in an editable install\n")
    assert imports(fakes) == PROBED
    (folder / "fake0-1.0.dist-info" / "RECORD").write_text("counts.py,sha256=other,1\n")
    assert imports(fakes) == PROBED
    assert imports(fakes) == []


def test_an_edited_module_of_manifests_is_read_anew(fakes):
    folder = fakes.add("counts", COUNTS + "import counts_further\n")
    (folder / "counts_further.py").touch()
    assert imports(fakes) == PROBED
    assert imports(fakes) == []
    (folder / "counts_further.py").write_text("# edited\n")
    assert imports(fakes) == PROBED


def test_a_corrupt_cache_is_asked_anew(fakes):
    fakes.add("counts", COUNTS)
    imports(fakes)
    wrong = ("", "{", "[]", '{"problem": 3, "imports_torch": false}', "\udcff", '{"kernels": [{"name": "good"}]}')
    (kept,) = (path for path in (fakes.root / "cache" / "plugins").iterdir() if b'"good"' in path.read_bytes())
    for garbage in wrong:
        kept.write_text(garbage, "utf-8", "surrogateescape")
        assert imports(fakes) == PROBED
    kept.unlink()
    os.mkfifo(kept)
    assert imports(fakes) == PROBED


def test_without_a_writable_cache_everything_works(fakes):
    fakes.add("counts", COUNTS)
    (fakes.root / "file").touch()
    for _ in range(2):
        assert imports(fakes, LONGCA_CACHE_DIR=str(fakes.root / "file" / "cache")) == PROBED


def test_a_bad_answer_lasts_until_something_is_installed(fakes):
    fakes.add("needs", "import missing_piece\n" + GOOD)
    assert "missing_piece" in fakes.plugins()["needs"]["problems"][0]
    folder = fakes.add("missing-piece", GOOD.replace("good", "piece"))
    assert folder.exists()
    assert fakes.plugins()["needs"]["kernels"] == ["good"]


def test_unseen_plugins_are_probed_at_the_same_time(fakes):
    meet = """
import pathlib, time
pathlib.Path("{mine}").touch()
while not pathlib.Path("{other}").exists():
    time.sleep(0.01)
"""
    fakes.add("left", meet.format(mine="left-is-here", other="right-is-here") + GOOD.replace("good", "left"))
    fakes.add("right", meet.format(mine="right-is-here", other="left-is-here") + GOOD.replace("good", "right"))
    listed = fakes.plugins()
    assert [listed[name]["kernels"] for name in ("left", "right")] == [["left"], ["right"]]


def test_a_plugin_that_asks_for_the_registry_does_not_recurse(fakes):
    fakes.add("recurses", "import longca\nlongca.registry()\n" + GOOD)
    assert "must not" in fakes.plugins()["recurses"]["problems"][0]


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_a_timeout_that_is_none_is_refused(fakes, text):
    fakes.add("good", GOOD)
    ran = fakes.longca("plugins", LONGCA_PROBE_TIMEOUT=text)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"error: LONGCA_PROBE_TIMEOUT is {text!r}; give a number of seconds above 0\n"


def test_entry_points_of_a_distribution_are_bounded(fakes):
    fakes.add("honest", GOOD)
    folder = fakes.add("many", RETURNS.format("[]"))
    points = "\n".join(f"many{number:05} = many" for number in range(20_000))
    next(folder.glob("*.dist-info/entry_points.txt")).write_text(f"[longca]\n{points}\n")
    started = time.monotonic()
    found = json.loads(fakes.longca("plugins", "--json").stdout)
    assert time.monotonic() - started < 60
    mine = [plugin for plugin in found if plugin["distribution"] == "many"]
    assert len(mine) == 51
    assert "it has 20000 entry points in the group longca, and at most 50 are taken" in mine[0]["problems"][0]
    assert next(plugin["kernels"] for plugin in found if plugin["distribution"] == "honest") == ["good"]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (
            "iter(lambda: kernel('same'), None)",
            ["provide_kernel returned several manifests named 'same'; all but the first are left out"],
        ),
        (
            "(kernel(f'k{n // 2}') for n in __import__('itertools').count())",
            [
                *(
                    f"provide_kernel returned several manifests named 'k{n}'; all but the first are left out"
                    for n in range(10)
                ),
                "provide_kernel returned manifests with 490 more faults",
            ],
        ),
    ],
    ids=["one name", "many names"],
)
def test_manifests_without_end_are_said_in_a_few_lines(fakes, returned, said):
    fakes.add("endless", RETURNS.format(returned))
    assert fakes.plugins()["endless"]["problems"] == said


def test_switching_plugins_off(fakes):
    for name in ("one", "two"):
        fakes.add(f"dist-{name}", GOOD.replace("good", name), entry=name)

    def active(*arguments, **env):
        return {name for name, plugin in fakes.plugins(*arguments, **env).items() if plugin["active"]}

    assert {"dist-one", "dist-two"} <= active()
    assert "dist-one" not in active("--no-plugin", "one")
    assert active(LONGCA_PLUGINS="Dist_One") == {"longca-core", "dist-one"}
    assert active(LONGCA_PLUGINS="two, one") == {"longca-core", "dist-one", "dist-two"}
    assert active(LONGCA_PLUGINS="") == {"longca-core"}
    for refused in (fakes.longca("plugins", "--no-plugin", "onf"), fakes.longca("plugins", LONGCA_PLUGINS="onf")):
        assert refused.returncode == 2
        assert refused.stderr == "error: unknown plugin 'onf'. Did you mean one?\n"
    assert "cannot be switched off" in fakes.longca("--no-plugin", "longca-core", "plugins").stderr
