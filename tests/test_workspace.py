"""The house rules that no single distribution can keep: its shape, its versions, and who may import whom."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from .imports import DISTRIBUTIONS, ROOT, early_closure, imports, module_named, modules, package_of, packages_of

CORE = ROOT / "core"
PLUGINS = [path for path in DISTRIBUTIONS if path != CORE]

#: Libraries without an entry point. A plugin may import them.
KITS = [path for path in PLUGINS if path.name in {"longca_transformers", "longca_triton"}]

#: The core's floors from the ground up, each with its packages and modules. A floor imports none above it.
FLOORS = {
    "ground": (
        "longca.errors",
        "longca.limits",
        "longca.parsing",
        "longca.plain_text",
        "longca.plan_cache",
        "longca.processes",
    ),
    "masks": ("longca.masks",),
    "manifests": ("longca.manifests",),
    "plugins": ("longca.adviser", "longca.hookspecs", "longca.discovery", "longca.plugins", "longca.shared_layouts"),
    "advice": ("longca_advice",),
    "attention": ("longca.kernels", "longca.metadata", "longca_builtin", "longca.parallel", "longca.integrations"),
    # The package itself fetches names from every floor of the contract. The application may import it.
    "front": ("longca",),
    "suites": ("longca_bench.suites",),
    "measuring": (
        "longca_bench.verification",
        "longca_bench.measuring",
        "longca_bench.ranks",
        "longca_bench.conformance",
        "longca_bench.functions",
    ),
    "reports": ("longca_bench.reports",),
    "cli": ("longca_bench.cli",),
    # `testing` and `__main__` are doors of the application.
    "doors": ("longca_bench", "longca.testing", "longca.__main__"),
}
TORCH_FREE = ("ground", "masks", "manifests", "plugins", "advice", "reports", "cli")
#: The modules of `longca` that may import `longca_bench`. No other module of `longca` imports these.
DOORS = ("longca.testing", "longca.__main__")


def _pyproject(distribution: Path) -> dict[str, Any]:
    return tomllib.loads((distribution / "pyproject.toml").read_text(encoding="utf-8"))


def _id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _floor(module: str) -> str:
    parts = module.split(".")
    for known in (".".join(parts[:n]) for n in range(len(parts), 0, -1)):
        floors = [name for name, packages in FLOORS.items() if known in packages]
        if floors and (known != "longca" or module == "longca"):
            return floors[0]
    raise AssertionError(f"{module} is on no floor; say in FLOORS which one it belongs to")


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=_id)
def test_a_distribution_is_whole(distribution):
    for name in ("pyproject.toml", "README.md", "LICENSE", "src", "tests"):
        assert (distribution / name).exists(), name
    assert all((package / "py.typed").is_file() for package in packages_of(distribution))
    assert list(distribution.glob("tests/**/test_*.py"))
    assert (distribution / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert len((distribution / "README.md").read_text(encoding="utf-8").splitlines()) > 10


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=_id)
def test_a_distribution_says_what_it_is(distribution):
    project = _pyproject(distribution)["project"]
    assert project["name"].startswith("longca-")
    entries = project.get("entry-points", {}).get("longca", {})
    assert bool(entries) == (distribution not in KITS), "a plugin has an entry point, and a kit has none"
    assert set(entries.values()) <= set(modules(distribution))
    for key in ("description", "readme", "license", "license-files", "requires-python", "keywords", "urls"):
        assert project[key], key
    assert project["authors"] == [{"name": "LongCA contributors"}]
    assert not any(text.startswith("License ::") for text in project["classifiers"]), (
        "the licence is an SPDX expression"
    )
    assert project["requires-python"] == _pyproject(CORE)["project"]["requires-python"]
    assert "Typing :: Typed" in project["classifiers"]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=_id)
def test_the_readme_works_on_an_index_page(distribution):
    readme = (distribution / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)]*)\)|<(?:img|a)[^>]*(?:src|href)=\"([^\"]*)", readme)
    relative = [link for pair in targets for link in pair if link and not link.startswith(("https://", "#"))]
    assert not relative, "an index page shows no other files: name them in words, or give their https address"


@pytest.mark.parametrize("distribution", PLUGINS, ids=_id)
def test_a_plugin_asks_for_this_core(distribution):
    needed = [Requirement(text) for text in _pyproject(distribution)["project"]["dependencies"]]
    core = next(requirement for requirement in needed if requirement.name == "longca-core")
    assert core.specifier.contains(_pyproject(CORE)["project"]["version"])
    assert {"<", ">="} <= {part.operator for part in core.specifier}, "give the core's API a lower and an upper bound"


def test_versions_are_in_lock_step():
    assert len({_pyproject(path)["project"]["version"] for path in DISTRIBUTIONS}) == 1


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=_id)
def test_the_workspace_checks_it(distribution):
    tools = _pyproject(ROOT)["tool"]
    assert f"{_id(distribution)}/src" in tools["mypy"]["files"]
    assert f"{_id(distribution)}/src" in tools["mypy"]["mypy_path"].split(":")
    assert f"{_id(distribution)}/tests" in tools["pytest"]["ini_options"]["testpaths"]
    assert {path.name for path in packages_of(distribution)} <= set(tools["ruff"]["lint"]["isort"]["known-first-party"])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=_id)
def test_nothing_imports_sideways(distribution):
    others = {package_of(path).name for path in PLUGINS if path != distribution and path not in KITS}
    others |= {package_of(path).name for path in KITS if distribution == CORE}
    for name, path in modules(distribution).items():
        reached = {i.target.partition(".")[0] for i in imports(path)} & others
        assert not reached, f"{name} imports {reached}, another distribution's package"


def test_a_floor_imports_none_above_it():
    order = list(FLOORS)
    core = modules(CORE)
    for name, path in core.items():
        if _floor(name) == "doors":
            continue
        targets = [module for i in imports(path) if (module := module_named(i.target, core))]
        above = [module for module in targets if order.index(_floor(module)) > order.index(_floor(name))]
        assert not above, f"{name} of floor {_floor(name)} imports {above}"


def _torch_free() -> list[str]:
    named = [name for name in modules(CORE) if _floor(name) in TORCH_FREE]
    return [*named, "longca.kernels", "longca_builtin"]


@pytest.mark.parametrize("module", _torch_free())
def test_listings_import_no_torch(module):
    core = modules(CORE)
    for name in early_closure(module, core):
        early = {i.target.partition(".")[0] for i in imports(core[name]) if i.early}
        assert "torch" not in early, f"{module} imports {name}, which imports torch"


def test_the_contract_imports_nothing_of_the_application():
    for name, path in modules(CORE).items():
        if name.partition(".")[0] != "longca_bench" and name not in DOORS:
            reached = [i.target for i in imports(path) if i.target.startswith(("longca_bench", *DOORS))]
            assert not reached, f"{name} imports {reached}"


@pytest.mark.parametrize("distribution", PLUGINS, ids=_id)
def test_listing_a_plugin_imports_no_torch(distribution):
    mine = modules(distribution)
    for entry in _pyproject(distribution)["project"].get("entry-points", {}).get("longca", {}).values():
        for name in early_closure(entry, mine):
            early = {i.target.partition(".")[0] for i in imports(mine[name]) if i.early}
            assert "torch" not in early, f"{entry} imports {name}, which imports torch"


_NOT_OURS = {".git", ".venv", ".hypothesis", ".stage", "__pycache__", "_build", "build", "dist", "runs"}


def _files() -> Iterator[Path]:
    """The repository's files, by name alone, so that a copy without its history has them too."""
    for folder, names, files in os.walk(ROOT):
        names[:] = [name for name in names if name not in _NOT_OURS and not name.endswith(("_cache", ".egg-info"))]
        yield from (Path(folder) / name for name in files)


def test_no_file_names_a_folder_of_someones_machine():
    somewhere = re.compile(rb"(?<![\w.~-])/(?:home|root|work|Users)/\w")
    found = [_id(path) for path in _files() if somewhere.search(path.read_bytes())]
    assert not found


@pytest.mark.xdist_group("kept together")
def test_the_tests_of_a_group_share_a_process(request):
    """Tests of a group share ports and costly fixtures. Some versions of pytest and pytest-xdist lose their groups."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("all tests run in one process")
    assert request.node.nodeid.endswith("@kept together")
