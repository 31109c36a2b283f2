"""What tests of advice get: an empty history, and a question of a strategy that is not there."""

import sys

import pytest

from longca import Problem, masks
from longca_advice.costs import CostModel
from longca_advice.request import Request

from ..fake_plugins import provides
from .crossed import CPU, RUN, STRATEGY
from .rows import row


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    """The file of this machine's evidence, of which there is none."""
    path = tmp_path / "history" / "evidence.jsonl"
    monkeypatch.setenv("LONGCA_HISTORY", str(path))
    return path


@pytest.fixture
def asked(open_registry):
    """Makes a question of a causal mask of 4096 tokens, whose only kernel is a plain one."""

    def made(schedule="crossed_strategy:schedule", capacity=None, rows=None, **fields):
        kernels = provides("plain")
        known = open_registry(crossed=STRATEGY.format(schedule=schedule), plain=kernels)
        usual = {"mask": masks.build("causal", 4096), "heads_q": 8, "heads_kv": 2, "device": CPU}
        if rows is None:
            rows = [row(pattern=name, seqlen=n, run=RUN) for name in ("full", "causal") for n in (512, 2048, 4096)]
        return Request(Problem(**{**usual, **fields}), False, known, CostModel(rows), capacity, ("plain",))

    yield made
    sys.modules.pop("crossed_strategy", None)
