"""Plugins as real distributions in real processes. Each broken one is left out with a reason, and the others work."""

import pytest

from .fake_plugins import FakePlugins

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

#: The code of each plugin, and a part of the message about it.
BROKEN = {
    "raises": ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
    "exits": ("raise SystemExit(3)", "raised SystemExit: 3"),
    "hook-raises": ("@hookimpl\ndef provide_kernel(): 1 / 0", "provide_kernel raised ZeroDivisionError"),
    "none": (RETURNS.format("None"), "provide_kernel returned None; it returns one KernelManifest or several"),
    "text": (RETURNS.format("'kernel'"), "provide_kernel returned an object of type str"),
    "invalid": (RETURNS.format("kernel('Not A Name')"), "raised ValidationError: name: String should match pattern"),
    "future": (RETURNS.format("kernel('future', api=(99,))"), "'future' is written for plugin API 99, this is 1"),
    "clash": (RETURNS.format("kernel('sdpa')"), "kernel 'sdpa' of clash is left out: longca-core provides one"),
    "unknown-hook": ("@hookimpl\ndef provide_kernels(): ...", "unknown hook 'provide_kernels'"),
    "signature": ("@hookimpl\ndef provide_kernel(device): ...", "can not be found in the hookspec"),
    "no-hook": ("def provide_kernel(): ...", "it implements no hook"),
    "no-module": (None, "No module named 'no_module'"),
}


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """One listing of the broken plugins and of a few good ones."""
    fakes = FakePlugins(tmp_path_factory.mktemp("broken"))
    for name, (code, _) in BROKEN.items():
        fakes.add(name, code)
    fakes.add("good", GOOD)
    fakes.add("mixed", RETURNS.format("[kernel('mixed'), 'not one', kernel('mixed'), kernel('naive')]"))
    fakes.add("noisy", GOOD.replace("good", "noisy") + "print('noise')\n")
    fakes.add("slow", GOOD.replace("good", "slow") + "import torch\n")
    fakes.add(f"evil{ESCAPE}[red]", GOOD.replace("good", "evil"), module="evil_names")
    fakes.add("twin-a", GOOD.replace("good", "twin_a"), entry="twin")
    fakes.add("twin-b", GOOD.replace("good", "twin_b"), entry="twin")
    return fakes, fakes.plugins()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_left_out_and_reported(listed, name):
    plugin = listed[1][name]
    assert plugin["kernels"] == []
    assert len(plugin["problems"]) == 1
    assert BROKEN[name][1] in plugin["problems"][0]
    assert "\n" not in plugin["problems"][0]


def test_the_others_work_and_json_stays_json(listed):
    for name in ("good", "noisy", "slow"):
        assert (listed[1][name]["kernels"], listed[1][name]["problems"]) == ([name], [])
    assert "imports torch" in listed[1]["slow"]["warnings"][0]
    assert [listed[1][name]["kernels"] for name in ("twin-a", "twin-b")] == [["twin_a"], ["twin_b"]]


def test_only_the_offending_kernels_are_left_out(listed):
    mixed = listed[1]["mixed"]
    assert mixed["kernels"] == ["mixed"]
    assert len(mixed["problems"]) == 3


def test_a_terminal_gets_no_control_characters_and_no_markup_of_a_name(listed):
    shown = listed[0].longca("plugins")
    assert ESCAPE not in shown.stdout
    assert "evil\\x1b[31m[red] 1.0" in shown.stdout


def test_switching_plugins_off(fakes):
    for name in ("one", "two"):
        fakes.add(f"dist-{name}", GOOD.replace("good", name), entry=name)

    def active(*arguments, **env):
        return {name for name, plugin in fakes.plugins(*arguments, **env).items() if plugin["active"]}

    assert {"dist-one", "dist-two"} <= active()
    assert "dist-one" not in active("--no-plugin", "one")
    assert active(LONGCA_PLUGINS="Dist_One") == {"longca-core", "dist-one"}
    assert active(LONGCA_PLUGINS="") == {"longca-core"}
    for refused in (fakes.longca("plugins", "--no-plugin", "onf"), fakes.longca("plugins", LONGCA_PLUGINS="onf")):
        assert refused.returncode == 2
        assert refused.stderr == "error: unknown plugin 'onf'. Did you mean one?\n"
    assert "cannot be switched off" in fakes.longca("--no-plugin", "longca-core", "plugins").stderr
