"""The profiles of Hypothesis: the same examples every time in CI, and fresh ones on a developer's machine.

Tests of a module that share a fixture stay on one worker of pytest-xdist.

The distributions whose folder is named as their package are imported before pytest does so by the folder.

In its importlib mode pytest names a test module by its path, `longca_flashattn.tests.test_calls`, and would make an
empty module of the parent where none is there yet.
"""

import importlib
import os
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

#: A shared machine may be slow in any example.
_COMMON = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", _COMMON)
settings.register_profile("ci", _COMMON, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

#: A variable of processes of tests, if exhaustive tests run.
_ALL = "LONGCA_TEST_ALL"
#: Dtypes of exhaustive tests, as names of conformance tests have them.
_DTYPES = ("-float16-", "-float64-")

#: The folder of the measurements of tests, which must not reach the user's own.
_HISTORY = pytest.StashKey[tempfile.TemporaryDirectory[str]]()
#: The folders below a folder, by their paths.
_FOLDERS = pytest.StashKey[dict[Path, pytest.Collector | None]]()

for folder in Path(__file__).parent.glob("longca_*"):
    importlib.import_module(folder.name)


def pytest_configure(config: pytest.Config) -> None:
    """Gives tests and their processes an own history, and exhaustive tests to those that run pytest themselves."""
    os.environ["LONGCA_HISTORY"] = config.stash.setdefault(_HISTORY, tempfile.TemporaryDirectory()).name + "/evidence"
    if not config.option.markexpr:
        os.environ[_ALL] = "1"
    elif _ALL in os.environ and config.option.markexpr == "not exhaustive":
        config.option.markexpr = ""


@pytest.hookimpl(wrapper=True)
def pytest_collect_directory(
    path: Path, parent: pytest.Collector
) -> Generator[None, pytest.Collector | None, pytest.Collector | None]:
    """Keeps one node for each folder.

    A file that is named on the command line makes pytest 9.1 read its folder again. The folders in it get other nodes
    then, and the fixtures of their conftest.py are known at the first ones alone.
    """
    made = yield
    return parent.stash.setdefault(_FOLDERS, {}).setdefault(path, made)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Groups the tests of a module that share a fixture, which each worker would make anew.

    Without a GPU, conformance in two of the four dtypes is for exhaustive tests. So is what `sampled` leaves out of a
    test's cases. Several workers begin with the slow tests, so that none of them is left to one worker at the end.
    """
    on_gpu = torch.cuda.is_available()
    met: Counter[str] = Counter()
    for item in items:
        if not on_gpu and item.name.startswith("test_conformance[") and any(map(item.name.__contains__, _DTYPES)):
            item.add_marker(pytest.mark.exhaustive)
        if (sampled := item.get_closest_marker("sampled")) and not item.get_closest_marker("exhaustive"):
            test = item.nodeid.partition("[")[0]
            if met[test] % sampled.args[0]:
                item.add_marker(pytest.mark.exhaustive)
            met[test] += 1
        if item.get_closest_marker("xdist_group") is None and _shares(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))

    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not (item.get_closest_marker("slow") or "test_interpreted" in item.name))


def _shares(item: pytest.Item) -> bool:
    """Whether a test takes a fixture of its module's or its package's."""
    fixtures = getattr(item, "_fixtureinfo", None)
    found = fixtures.name2fixturedefs.values() if fixtures is not None else ()
    return any(each[-1].scope in ("module", "package") for each in found if each)
