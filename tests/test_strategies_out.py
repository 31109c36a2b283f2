"""Predictions of strategies are as good as promised, on numbers of GPUs that they have not seen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from longca import registry
from longca_advice.devices import DEVICES
from longca_advice.from_records import PlacementChangedError, layout_of

from .scripts import RESULTS, script

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    report: dict[str, Any] = script("results/strategies_out").report()
    return report


def test_errors_are_within_the_targets(found: dict[str, Any]) -> None:
    assert found["errors"]["all"]["median"] <= 0.06
    assert found["errors"]["all"]["p90"] <= 0.15
    assert found["errors"]["rough"]["p90"] <= 0.15


def test_little_is_lost_by_predicted_placements_and_strategies(found: dict[str, Any]) -> None:
    assert found["placements"]["max"] <= 0.007
    assert found["strategies"]["mean"] <= 0.02


def test_a_record_of_a_placement_that_has_changed_is_no_evidence() -> None:
    lines = (RESULTS / "h200" / "distributed" / "two-placed" / "records.jsonl").read_text(encoding="utf-8").splitlines()
    record = next(r for r in map(json.loads, lines) if r["placed"] == "zigzag" and r["strategy"] == "ring_p2p")
    layout_of(registry(), record, DEVICES["h200"])
    record["area_imbalance"] *= 1.001
    with pytest.raises(PlacementChangedError, match="the placement zigzag has changed"):
        layout_of(registry(), record, DEVICES["h200"])
