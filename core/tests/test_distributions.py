"""Metadata that is no text, no file or another's: reported by `longca plugins`, and every command works."""

import json
import os
import shutil
from random import Random

import pytest

from .fake_plugins import WORKS, FakePlugins, provides

NOISE = Random(0).randbytes(4096)
COMMANDS = {
    "list-capabilities": ("list-capabilities", "--json"),
    "dry-run": ("run", "causal", "--seqlen", "64", "--dry-run"),
    "doctor": ("doctor", "--no-timing"),
    "recommend": ("recommend", "causal", "--seqlen", "4096", "--device", "cpu"),
    "show-mask": ("show-mask", "causal", "--seqlen", "64"),
    "version": ("--version",),
}


def noise(path):
    path.write_bytes(NOISE)


def large(path):
    with open(path, "ab") as file:
        file.truncate(20_000_000 if path.name != "RECORD" else 40_000_000)


def folder(path):
    path.unlink()
    path.mkdir()


def fifo(path):
    path.unlink()
    os.mkfifo(path)


def empty(path):
    path.write_bytes(b"")


def unnamed(path):
    path.write_text("Metadata-Version: 2.1\nVersion: 1\n")


#: What is done to a file of the metadata, and a part of what is said.
FAULTS = {
    **{(name, noise): "is no text in UTF-8" for name in ("entry_points.txt", "METADATA", "RECORD")},
    **{(name, large): "and at most" for name in ("entry_points.txt", "METADATA", "RECORD")},
    **{(name, folder): "it is a folder" for name in ("entry_points.txt", "METADATA", "RECORD")},
    **{(name, fifo): "it is a FIFO" for name in ("entry_points.txt", "METADATA", "RECORD")},
    ("METADATA", empty): "its metadata cannot be read",
    ("METADATA", unnamed): "its metadata cannot be read",
    ("METADATA", os.unlink): "its metadata cannot be read",
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """Distributions whose metadata has a fault each, one that is whole, and two that call themselves the core."""
    fakes = FakePlugins(tmp_path_factory.mktemp("metadata"))
    for index, (name, harm) in enumerate(FAULTS):
        at = fakes.add(f"broken-{index}", provides(f"broken_{index}"))
        harm(next(at.glob("*.dist-info")) / name)
    fakes.add("honest", provides("honest"))
    fakes.add("works", WORKS)
    for name in ("longca-core", "LongCA.Core"):
        fakes.add(name, provides("sdpa", title="Not the core's"), entry="core", module="not_the_core", version="99")
    return fakes


@pytest.fixture(scope="module")
def listed(broken):
    ran = broken.longca("plugins", "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    return json.loads(ran.stdout)


@pytest.mark.parametrize("index", range(len(FAULTS)), ids=[f"{name}-{harm.__name__}" for name, harm in FAULTS])
def test_a_fault_is_said_under_the_name_of_the_folder(listed, index):
    (plugin,) = [plugin for plugin in listed if plugin["distribution"] == f"fake{index}-1.0.dist-info"]
    assert list(FAULTS.values())[index] in plugin["problems"][0]
    assert plugin["kernels"] == []


def test_a_distribution_that_calls_itself_the_core_is_not_the_core(listed):
    (core,) = [plugin for plugin in listed if plugin["distribution"] == "longca-core"]
    assert listed[0] == core
    assert (core["module"], core["kernels"], core["problems"]) == ("longca_builtin", ["naive", "sdpa"], [])
    others = [plugin["problems"][0] for plugin in listed if plugin["distribution"].endswith("-99.dist-info")]
    assert others == [
        f"it calls itself {name}, and the files of longca-core are elsewhere. Remove it"
        for name in ("longca-core", "LongCA.Core")
    ]
    assert [plugin["kernels"] for plugin in listed if plugin["distribution"] == "honest"] == [["honest"]]


def test_its_manifests_are_the_cores(broken):
    said = json.loads(broken.says("list-capabilities", "--json"))["kernels"]
    assert said["sdpa"]["distribution"] == "longca-core"
    assert said["sdpa"]["title"] == "PyTorch scaled dot-product attention"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_command_works(broken, command):
    ran = broken.longca(*command)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
@pytest.mark.exhaustive
def test_kernels_are_measured_and_verified(broken):
    broken.measure()


@pytest.mark.parametrize("harm", [noise, fifo, None])
def test_a_folder_named_as_the_cores_is_not_its_metadata(fakes, harm):
    at = fakes.add("longca-core", provides("sdpa"), entry="core", module="not_the_core", version="99")
    info = at / "longca_core-99.dist-info"
    shutil.move(next(at.glob("*.dist-info")), info)
    if harm:
        harm(info / "METADATA")
    plugins = fakes.plugins()
    assert plugins["longca-core"]["module"] == "longca_builtin"
    assert plugins[info.name]["problems"]
    assert fakes.says("--version") != "longca 99\n"
    assert fakes.longca("doctor", "--no-timing").returncode == 0


@pytest.mark.parametrize("version", ["banana", "1.0\x1b[31m"])
def test_a_required_package_of_an_odd_version_is_not_the_right_one(fakes, version):
    fakes.add("needs", provides("needy", requires=("odd-one>=2",)))
    at = fakes.add("odd-one", None)
    shutil.move(next(at.glob("*.dist-info")), at / "odd_one-1.0.dist-info")
    (at / "odd_one-1.0.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: odd-one\nVersion: {version}\n"
    )
    said = fakes.says("list-capabilities", "--why", "needy", "causal")
    assert "odd-one" in said
    assert "\x1b" not in said
