"""The wheels as a stranger gets them: built, installed in a fresh environment outside the repository, and used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .imports import DISTRIBUTIONS, ROOT, packages_of

# The tests of installed wheels share one environment, which takes a minute to make: all on one worker, in this order.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000), pytest.mark.xdist_group("wheels")]

DATA = {
    "core": (
        "longca/masks/data/document_lengths.json",
        "longca_advice/evidence.jsonl",
        "longca_bench/suites/quick.toml",
    ),
    "example": (),
}


@dataclass
class Environment:
    """A fresh virtual environment, and a folder outside the repository to run its commands in."""

    folder: Path

    def run(self, *command: str, code: int = 0) -> str:
        """Runs one of the environment's programs; its standard output, once it has exited with `code`."""
        program, *arguments = command
        home = {"LONGCA_CACHE_DIR": str(self.folder / "cache"), "LONGCA_HISTORY": str(self.folder / "history.jsonl")}
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
        assert done.returncode == code, f"{command} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def install(self, *requirements: str) -> None:
        """Installs requirements at the workspace's pinned versions."""
        self.run(
            "python", "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), *requirements
        )

    def longca(self, *arguments: str) -> Any:
        """What a command of `longca` prints as JSON."""
        return json.loads(self.run("longca", *arguments, "--json"))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """The wheel of each distribution, by the name of the distribution's folder."""
    found = {}
    for distribution in DISTRIBUTIONS:
        folder = tmp_path_factory.mktemp(f"wheel-{distribution.name}")
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(distribution)]
        done = subprocess.run(build, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        (found[distribution.name],) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def core_alone(wheels, tmp_path_factory) -> Environment:
    """An environment with the core and nothing else of ours."""
    folder = tmp_path_factory.mktemp("environment")
    (folder / "elsewhere").mkdir()
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, timeout=600)
    environment = Environment(folder)
    environment.install("torch==2.13.0", str(wheels["core"]))
    return environment


@pytest.fixture(scope="module")
def with_example(core_alone, wheels) -> Environment:
    """The same environment, once the example plugin is installed too."""
    core_alone.install(str(wheels["example"]))
    return core_alone


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


def test_the_core_comes_from_its_wheel_and_imports_no_torch(core_alone):
    code = "import sys, longca, longca.masks, longca_bench.cli; print('torch' in sys.modules, longca.__file__)"
    loaded, file = core_alone.run("python", "-c", code).split(maxsplit=1)
    assert loaded == "False"
    assert file.startswith(str(core_alone.folder / "venv"))


def test_the_core_alone_lists_its_kernels(core_alone):
    assert set(core_alone.longca("list-capabilities")["kernels"]) == {"naive", "sdpa"}
    assert [plugin["distribution"] for plugin in core_alone.longca("plugins")] == ["longca-core"]
    core_alone.run("longca", "verify", "--kernel", "online", code=2)


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


def test_an_installed_plugins_kernel_is_verified(with_example):
    checks = with_example.longca("verify", "--kernel", "online")["online"]
    assert {check["dtype"] for check in checks} == {"float64", "float32", "bfloat16", "float16"}
    assert all(check["passed"] for check in checks)


def test_an_installed_plugins_kernel_is_measured(with_example):
    out = with_example.folder / "records"
    records = with_example.longca("run", "quick", "--kernel", "online", "--seqlen", "256", "--out", str(out))
    statuses = {(record["pattern"], record["direction"]): record["status"] for record in records}
    refused = {pattern for (pattern, _), status in statuses.items() if status == "unsupported"}
    assert refused == {"uniform_block_sparse", "variable_block_sparse"}
    measured = [record for record in records if record["status"] == "ok"]
    assert len(measured) == len(records) - 4 == 24
    assert all(record["median"] > 0 and record["samples"] for record in measured)
    assert all(record["distribution"] == "longca-example" for record in measured)
    assert len((out / "records.jsonl").read_text(encoding="utf-8").splitlines()) == len(records)


def test_a_kit_comes_with_the_plugins_that_are_made_of_it(core_alone, wheels):
    found = [f"--find-links={wheels[name].parent}" for name in ("longca_triton", "longca_vsa", "longca_flashmask")]
    core_alone.install("--no-index", *found, "longca-vsa", "longca-flashmask")
    plugins = {plugin["distribution"]: plugin for plugin in core_alone.longca("plugins")}
    assert "longca-triton" not in plugins, "a kit has no entry point"
    assert plugins["longca-vsa"]["kernels"] == ["bsa", "vsa", "vsa_triton", "fa2_sparse"]
    assert plugins["longca-flashmask"]["kernels"] == ["flashmask"]
    core_alone.run("python", "-c", "import longca_triton.kernel, longca_vsa.bsa.kernel, longca_flashmask.flashmask")
