"""The strategy of `auto`: the least predicted time, or the first valid strategy without a prediction."""

import logging

import numpy as np
import pytest

import longca
from longca import Device, adviser, masks
from longca.errors import RequestError, UnknownNameError, UnsupportedError
from longca_advice import auto_layout
from longca_advice.devices import DEVICES

from .test_strategies import EXACT, sizes

H200, CPU = DEVICES["h200"], Device("cpu")
RING, PAIR = {"cp": 8}, {"ring": 4, "ulysses": 2}


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Nothing was chosen, said or measured here before."""
    monkeypatch.setattr(adviser, "_LOGGED", set())
    monkeypatch.setenv("LONGCA_HISTORY", str(tmp_path / "evidence.jsonl"))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    auto_layout._ARRANGED.clear()
    yield
    auto_layout._ARRANGED.clear()


def lay_out(mask=None, mesh=RING, heads=(64, 8), device=H200, kernel="sdpa", **more):
    mask = mask or masks.build("causal", 16384)
    return longca.layout(mask, strategy="auto", mesh=mesh, heads=heads, device=device, kernel=kernel, **more)


@pytest.mark.parametrize("pattern", ["full", "causal"])
def test_the_quickest_strategy_is_that_of_a_recommendation(pattern):
    mask = masks.build(pattern, 16384)
    single = ("ulysses", "ring_p2p", "ring_all_gather")
    asked = {"heads": (64, 8), "device": H200, "ranks": 8, "kernels": ("sdpa",), "strategies": single}
    assert lay_out(mask).strategy == longca.recommend(mask, **asked).best.strategy


def test_the_choice_is_said_once(caplog):
    caplog.set_level(logging.INFO, "longca")
    layout = lay_out()
    assert lay_out() is not None
    (record,) = caplog.records
    title = f"attention: sdpa with {layout.strategy} ("
    assert record.getMessage().startswith(title)
    assert "for causal of 16384 tokens in training: predicted to take " in record.getMessage()
    assert record.levelname == "INFO"


def test_the_dims_of_a_mesh_say_which_strategies_there_are():
    assert lay_out(mesh=PAIR).strategy == "usp"
    assert lay_out(mesh=PAIR, device=CPU).strategy == "usp"
    assert lay_out(mesh={"outer": 2, "inner": 1, "heads": 2}, device=CPU).strategy == "loongtrain"
    with pytest.raises(RequestError, match=r"no strategy runs on a mesh of 2 dims, x, y\. There are ulysses over"):
        lay_out(mesh={"x": 2, "y": 2})


@pytest.mark.parametrize(("heads", "strategy"), [((64, 8), "ulysses"), ((6, 2), "ring_all_gather")])
def test_without_evidence_there_is_an_order(heads, strategy, caplog):
    caplog.set_level(logging.INFO, "longca")
    assert lay_out(heads=heads, device=CPU).strategy == strategy
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert ": the first valid strategy. It is not ranked by evidence: no measurement on " in record.getMessage()


def test_a_placement_may_be_named():
    layout = lay_out(device=CPU, placement="zigzag")
    assert layout.strategy == "ring_all_gather", "ulysses has no such placement"
    with pytest.raises(UnknownNameError, match="unknown placement 'zigzags'"):
        lay_out(placement="zigzags")
    with pytest.raises(UnknownNameError, match="unknown kernel"):
        lay_out(kernel="nothing")


@pytest.mark.parametrize("placement", ["auto", "zigzag"])
def test_a_layout_that_its_kernel_does_not_take_is_refused(placement):
    noise = masks.from_dense(np.random.default_rng(0).random((64, 64)) < 0.5)
    about = {"strategy": "ring_p2p", "mesh": {"cp": 2}, "heads": (4, 4), "device": H200, "placement": placement}
    for mask in (noise, [(masks.build("causal", 64), 1.0), (noise, 1.0)]):
        with pytest.raises(UnsupportedError, match=r"flashmask takes .* Every step needs an offer"):
            longca.layout(mask, **about, kernel="flashmask")
        longca.layout(mask, **about, kernel="naive")


@sizes(2)
def test_calls_by_auto(world):
    for strategy, found in world.run("by_auto", 2):
        assert strategy == "ulysses"
        assert all(error <= EXACT for error in found)


@sizes(2)
def test_ranks_take_the_strategy_of_the_first(world):
    assert world.run("arranged_by_the_first", 2) == ["ulysses"] * 2
