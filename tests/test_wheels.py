"""The wheels as a stranger gets them: from an index, in a fresh environment with PyTorch, outside the repository.

`LONGCA_TEST_TORCH=2.9.1` takes another PyTorch than the pinned one; `make index TORCH=2.9.1` runs these tests with it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from .imports import DISTRIBUTIONS, ROOT, packages_of
from .scripts import script

# The tests of installed wheels share one environment, which takes a minute to make: all on one worker, in this order.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000), pytest.mark.xdist_group("wheels")]

PINNED = "2.13.0"
KITS = {"longca_transformers", "longca_triton"}
TORCH = os.environ.get("LONGCA_TEST_TORCH", PINNED)

DATA = {
    "core": (
        "longca/masks/data/document_lengths.json",
        "longca_advice/evidence.jsonl",
        "longca_bench/suites/quick.toml",
        "longca_bench/templates/new_plugin/project/.github/workflows/tests.yml",
    ),
    "example": (),
}


@dataclass
class Environment:
    """A fresh virtual environment, and a folder outside the repository to run its commands in."""

    folder: Path

    @classmethod
    def over(cls, base: Environment, folder: Path) -> Environment:
        """A fresh environment that sees another's packages and installs into a folder of its own."""
        made = cls._made(folder, "--without-pip")
        (made.packages / "base.pth").write_text(f"{base.packages}\n", encoding="utf-8")
        return made

    @classmethod
    def with_pip(cls, folder: Path) -> Environment:
        """A fresh environment with pip alone."""
        return cls._made(folder)

    @classmethod
    def _made(cls, folder: Path, *options: str) -> Environment:
        (folder / "elsewhere").mkdir()
        subprocess.run([sys.executable, "-m", "venv", *options, str(folder / "venv")], check=True, timeout=600)
        return cls(folder)

    @property
    def packages(self) -> Path:
        """The folder of installed packages."""
        root = str(self.folder / "venv")
        return Path(sysconfig.get_path("purelib", "venv", {"base": root, "platbase": root}))

    @property
    def installed(self) -> set[str]:
        """The names and versions of the distributions that were installed here."""
        return {path.name.removesuffix(".dist-info") for path in self.packages.glob("*.dist-info")}

    def run(self, *command: str, codes: Collection[int] = (0,)) -> str:
        """Runs one of the environment's programs; its standard output, once it has exited with one of `codes`."""
        program, *arguments = command
        home = {"LONGCA_HISTORY": str(self.folder / "history.jsonl")}
        ours = ("PYTHON", "LONGCA_", "VIRTUAL_ENV", "COVERAGE", "PYTEST")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        done = subprocess.run(
            [str(self.folder / "venv" / "bin" / program), *arguments],
            cwd=self.folder / "elsewhere",
            env={**clean, **home},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1200,
        )
        assert done.returncode in codes, f"{command} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def install(self, *requirements: str, codes: Collection[int] = (0,)) -> None:
        """Installs requirements with pip. Modules are compiled when they are imported: torch has some thousands."""
        self.run("python", "-m", "pip", "install", "--quiet", "--no-compile", *requirements, codes=codes)

    def longca(self, *arguments: str, codes: Collection[int] = (0,)) -> Any:
        """What a command of `longca` prints as JSON."""
        return json.loads(self.run("longca", *arguments, "--json", codes=codes))


def _name(distribution: Path) -> str:
    """The name of a distribution, as its files have it."""
    return distribution.name if distribution.name.startswith("longca_") else f"longca_{distribution.name}"


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    """A folder with the sdist of each distribution, and with the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("index")
    script("docs/release").build(ROOT, folder)
    return folder


@pytest.fixture(scope="module")
def wheels(index) -> dict[str, Path]:
    """The wheel of each distribution, by the name of the distribution's folder."""
    return {path.name: next(index.glob(f"{_name(path)}-*.whl")) for path in DISTRIBUTIONS}


def _metadata(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(opened.read(name))


def _needed(wheel: Path) -> list[Requirement]:
    """What a wheel asks for, and what the core asks for to compute and to measure, without other extras."""
    asked = [Requirement(text) for text in _metadata(wheel).get_all("Requires-Dist", [])]
    markers = [(requirement, requirement.marker) for requirement in asked]
    return [each for each, its in markers if its is None or any(its.evaluate({"extra": one}) for one in ("", "run"))]


@pytest.fixture(scope="module")
def with_torch(wheels, tmp_path_factory) -> Environment:
    """An environment with PyTorch and the other packages that the wheels need, and with nothing of ours."""
    environment = Environment.with_pip(tmp_path_factory.mktemp("base"))
    others = {
        f"{need.name}{need.specifier}"
        for wheel in wheels.values()
        for need in _needed(wheel)
        if not need.name.startswith(("longca-", "torch"))
    }
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    constraints = environment.folder / "constraints.txt"
    ours = [pin for pin in pins if TORCH == PINNED or not re.match(r"(torch|triton|sympy)\b", pin)]
    constraints.write_text("\n".join([*ours, f"torch=={TORCH}"]), encoding="utf-8")
    environment.install("--constraint", str(constraints), *sorted(others), f"torch=={TORCH}")
    return environment


@pytest.fixture(scope="module")
def core_alone(with_torch, wheels, tmp_path_factory) -> Environment:
    """An environment with the core and nothing else of ours."""
    environment = Environment.over(with_torch, tmp_path_factory.mktemp("environment"))
    environment.install("--no-index", str(wheels["core"]))
    return environment


@pytest.fixture(scope="module")
def with_example(core_alone, wheels) -> Environment:
    """The same environment, once the example plugin is installed too."""
    core_alone.install("--no-index", str(wheels["example"]))
    return core_alone


@pytest.mark.sampled(3)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda path: path.name)
def test_a_wheel_holds_the_package_and_nothing_else(distribution, wheels):
    with zipfile.ZipFile(wheels[distribution.name]) as wheel:
        names = wheel.namelist()
    packages = packages_of(distribution)
    source = {
        path.relative_to(distribution / "src").as_posix()
        for package in packages
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == source
    assert {*(f"{package.name}/py.typed" for package in packages), *DATA.get(distribution.name, ())} <= source
    assert any(name.endswith("/licenses/LICENSE") for name in names)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda path: path.name)
def test_a_wheel_is_the_same_with_and_without_the_sdist(distribution, wheels, tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=distribution, check=True, capture_output=True, timeout=600)
    (direct,) = tmp_path.iterdir()
    assert direct.name == wheels[distribution.name].name
    assert direct.read_bytes() == wheels[distribution.name].read_bytes()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda path: path.name)
def test_each_is_installed_alone_from_an_index_and_leaves_torch(distribution, index, wheels, with_torch, tmp_path):
    environment = Environment.over(with_torch, tmp_path)
    asked = ("--no-index", f"--find-links={index}", _name(distribution).replace("_", "-"))
    if not all(need.specifier.contains(TORCH) for need in _needed(wheels[distribution.name]) if need.name == "torch"):
        environment.install(*asked, codes=(1,))
        assert not environment.installed
        return
    environment.install(*asked)
    ours = {
        need.name.replace("-", "_") for need in _needed(wheels[distribution.name]) if need.name.startswith("longca-")
    }
    assert {name.partition("-")[0] for name in environment.installed} == {_name(distribution), *ours}
    plugins = environment.longca("plugins")
    assert {plugin["distribution"].replace("-", "_") for plugin in plugins} == {
        "longca_core",
        _name(distribution),
    } - KITS
    assert not any(plugin["problems"] for plugin in plugins)


def test_the_oldest_torch_is_left_and_an_older_one_is_refused(index, wheels, with_torch, tmp_path):
    asked = [need.specifier for need in _needed(wheels["core"]) if need.name == "torch"]
    (oldest,) = (part.version for specifier in asked for part in specifier)
    environment = Environment.over(with_torch, tmp_path)
    stand_in = environment.packages / f"torch-{oldest}.0.dist-info"
    stand_in.mkdir()
    (stand_in / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {oldest}.0\n", encoding="utf-8")
    environment.install("--no-index", f"--find-links={index}", "longca-core", "longca-vsa")
    assert {name.partition("-")[0] for name in environment.installed} == {
        "torch",
        "longca_core",
        "longca_triton",
        "longca_vsa",
    }
    assert stand_in.name.removesuffix(".dist-info") in environment.installed
    (stand_in / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.0.0\n", encoding="utf-8")
    environment.install("--no-index", f"--find-links={index}", "longca-cp", codes=(1,))


def test_the_core_comes_from_its_wheel_and_imports_no_torch(core_alone):
    code = "import sys, longca, longca.masks, longca_bench.cli; print('torch' in sys.modules, longca.__file__)"
    loaded, file = core_alone.run("python", "-c", code).split(maxsplit=1)
    assert loaded == "False"
    assert file.startswith(str(core_alone.folder / "venv"))


def test_the_core_asks_for_no_torch(wheels):
    needed = map(Requirement, _metadata(wheels["core"]).get_all("Requires-Dist"))
    assert not {need.name for need in needed if not need.marker} & {"torch", "pandas", "matplotlib", "altair"}


def test_the_core_alone_lists_its_kernels(core_alone):
    assert set(core_alone.longca("list-capabilities")["kernels"]) == {"naive", "sdpa"}
    assert [plugin["distribution"] for plugin in core_alone.longca("plugins")] == ["longca-core"]
    core_alone.run("longca", "verify", "--kernel", "online", codes=(2,))


def test_the_core_alone_attends(core_alone):
    code = """
import torch, longca
mask = longca.masks.sample("causal_document", seqlen=64, seed=0)
q, k, v = (torch.randn(64, heads, 16, requires_grad=True) for heads in (4, 2, 2))
longca.attention(q, k, v, mask).sum().backward()
print(q.grad.shape == q.shape)
"""
    assert core_alone.run("python", "-c", code).split() == ["True"]


def test_an_installed_plugin_is_found(with_example):
    plugins = {plugin["distribution"]: plugin for plugin in with_example.longca("plugins")}
    assert plugins["longca-example"]["kernels"] == ["online"]
    assert not plugins["longca-example"]["problems"]
    assert not plugins["longca-example"]["warnings"]
    listed = with_example.longca("list-capabilities")
    assert set(listed["kernels"]) == {"naive", "sdpa", "online"}
    here = {cell["pattern"] for cell in listed["cells"] if (cell["kernel"], cell["status"]) == ("online", "here")}
    assert len(here) == 12


@pytest.mark.exhaustive
def test_an_installed_plugins_kernel_is_verified(with_example):
    found = with_example.longca("verify", "--kernel", "online")["online"]
    assert [*found["sources"]] == ["longca_example"]
    checks = found["offers"]
    assert {check["dtype"] for check in checks} == {"float64", "float32", "bfloat16", "float16"}
    assert all(check["passed"] for check in checks)


@pytest.mark.exhaustive
def test_an_installed_plugins_kernel_is_measured(with_example):
    out = with_example.folder / "records"
    # On a busy machine the clocks may disagree about a case. It is `suspect` then, and the run exits with 1.
    records = with_example.longca(
        "run", "quick", "--kernel", "online", "--seqlen", "256", "--out", str(out), codes=(0, 1)
    )
    refused = {record["pattern"] for record in records if record["status"] == "unsupported"}
    assert refused == {"uniform_block_sparse", "variable_block_sparse"}
    measured = [record for record in records if record["status"] != "unsupported"]
    odd = [(r["pattern"], r["direction"], r["status"], r["message"]) for r in measured if r["status"] != "ok"]
    assert all(
        status == "suspect" and re.search("clocks disagree|after its end", message) for _, _, status, message in odd
    ), odd
    assert len(measured) == len(records) - 4 == 24
    assert len(odd) < 12, odd
    assert all(finding["passed"] for record in measured for finding in record["findings"])
    assert all(record["findings"] and record["median"] > 0 and record["samples"] for record in measured)
    assert all(record["distribution"] == "longca-example" for record in measured)
    assert len((out / "records.jsonl").read_text(encoding="utf-8").splitlines()) == len(records)


def test_a_kit_comes_with_the_plugins_that_are_made_of_it(core_alone, index):
    core_alone.install("--no-index", f"--find-links={index}", "longca-vsa", "longca-flashmask")
    plugins = {plugin["distribution"]: plugin for plugin in core_alone.longca("plugins")}
    assert "longca-triton" not in plugins, "a kit has no entry point"
    assert plugins["longca-vsa"]["kernels"] == ["bsa", "bsa_gluon", "vsa", "vsa_triton", "fa2_sparse"]
    assert plugins["longca-flashmask"]["kernels"] == ["flashmask"]
    core_alone.run("python", "-c", "import longca_triton.kernel, longca_vsa.bsa.kernel, longca_flashmask.flashmask")
