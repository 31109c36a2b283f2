"""What every test of measuring gets: a history of its own, and a registry to measure with."""

import pytest

from longca import plugins
from longca.manifests import Device, Problem
from longca.masks import build
from longca_bench.verification.inputs import draw_inputs
from longca_bench.verification.reference import reference
from longca_builtin.naive import Naive


@pytest.fixture(autouse=True)
def history(tmp_path, monkeypatch):
    path = tmp_path / "history.jsonl"
    monkeypatch.setenv("LONGCA_HISTORY", str(path))
    return path


@pytest.fixture
def core(monkeypatch):
    monkeypatch.setenv("LONGCA_PLUGINS", "")
    return plugins.Registry()


class Setup:
    """A problem with its inputs, its reference and the plan of a right kernel."""

    def __init__(self, mask=None, direction="backward", dtype="float32", heads=(4, 2), **more):
        mask = mask or build("causal_document", 300, documents=[100, 1, 199])
        self.problem = Problem(
            mask=mask, heads_q=heads[0], heads_kv=heads[1], head_dim=32, dtype=dtype, device=Device("cpu"),
            direction=direction, **more,
        )  # fmt: skip
        self.inputs = draw_inputs(self.problem, 0)
        self.expected = reference(self.problem, self.inputs)
        self.kernel = Naive()
        self.plan = self.kernel.plan(self.problem)


@pytest.fixture
def setup():
    return Setup
