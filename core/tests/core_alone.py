"""Fixtures of attention's tests: an own history and plan cache, the core alone, and no GPU tests without a GPU."""

import pytest
import torch

from longca import adviser, plugins
from longca.kernels import planned
from longca.plan_cache import PlanCache


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch sees none here")


@pytest.fixture(autouse=True)
def history(tmp_path, monkeypatch):
    """An empty history, so that nobody's own measurements steer the tests."""
    path = tmp_path / "history" / "records.jsonl"
    monkeypatch.setenv("LONGCA_HISTORY", str(path))
    monkeypatch.setenv("LONGCA_VERIFIED", str(tmp_path / "history" / "verified.jsonl"))
    return path


@pytest.fixture(autouse=True)
def plans(monkeypatch):
    """No plans of an earlier test, and nothing that it logged."""
    monkeypatch.setattr(adviser, "_LOGGED", set())
    fresh = PlanCache(planned.PLANS.most)
    monkeypatch.setattr(planned, "PLANS", fresh)
    return fresh


@pytest.fixture(scope="session")
def core():
    """The registry with the core's plugin alone, whatever else is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGCA_PLUGINS", "")
        return plugins.Registry()


@pytest.fixture(autouse=True)
def _core_alone(core, monkeypatch):
    monkeypatch.setattr(plugins, "registry", lambda: core)


@pytest.fixture(autouse=True)
def _one_thread():
    """The tensors are small: threads would only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
