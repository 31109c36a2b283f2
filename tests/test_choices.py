"""The view of choices: the first choice of each mask on two GPUs, beside the records of that choice and its aim."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest

import longca
from longca import masks
from longca_bench.measuring.records import Record

from .imports import ROOT
from .strategy_records import line, part, record, write

AIMS = {"aim": 0.9, "lower": ("shared_question", "prefix_lm_document"), "lower_aim": 0.7}
BY = {"ring_p2p": "ring=2", "ring_all_gather": "ring=2", "ulysses": "ulysses=2"}


@pytest.fixture(autouse=True)
def no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGCA_HISTORY", os.devnull)


@cache
def first(pattern: str) -> tuple[str, Any]:
    """The digest of a mask of 128 K tokens, and its first choice on two H200s."""
    mask = masks.sample(pattern, 2**17, lengths="mix", seed=0)
    return mask.digest, longca.recommend(mask, heads=(64, 8), device="h200", ranks=2).choices[0]


def taken(pattern: str, share: float, direction: str, **other: Any) -> Record:
    """A record of the first choice in a direction, which reached a share of one GPU alone."""
    digest, choice = first(pattern)
    alone = 1.0 if direction == "forward" else 2.0
    about = {
        "kernel": choice.forward if direction == "forward" else choice.backward, "placed": choice.placement,
        "world_size": 2, "seqlen": 2**17, "mesh": choice.mesh, "mask_digest": digest, "pattern": pattern,
        "moved_by": f"{choice.mesh.partition('=')[0]}=copy_engine",
    }  # fmt: skip
    return record(choice.strategy, alone / share, direction=direction, **(about | other))


def test_a_choice_is_beside_its_records_and_its_aim(tmp_path):
    runs = [
        taken("causal", 0.8, "forward"),
        taken("causal", 0.95, "backward"),
        taken("full", 0.5, "forward"),
        taken("full", 1.0, "backward"),
        taken("shared_question", 0.71, "forward"),
        taken("shared_question", 0.71, "backward"),
        taken("prefix_lm_causal", 1.0, "forward"),
        # Other ways to the same mask say nothing of the choice.
        taken("causal_blockwise", 0.99, "forward", kernel="naive"),
        taken("causal_blockwise", 0.99, "forward", placed="lazily"),
        taken("causal_blockwise", 0.99, "forward", mask_digest="another draw"),
        taken("causal_blockwise", 0.99, "forward", world_size=4),
        taken("causal_blockwise", 0.99, "forward", moved_by="ring=collectives"),
    ]
    text = part("choices", write(tmp_path / "x", runs), **AIMS)

    def shown(pattern: str) -> list[str]:
        _, choice = first(pattern)
        ways = (choice.kernel, choice.strategy, choice.placement)
        return line(text, f"`{pattern}`", *(f"`{each}`" for each in ways))

    assert shown("causal") == ["0.800", "0.950", "0.894", "0.90", "missed"], "3 s of one GPU took 3.36 s"
    assert shown("full") == ["0.500", "1.000", "0.750", "0.90", "missed"]
    assert shown("shared_question") == ["0.710", "0.710", "0.710", "0.70", "reached"]
    assert shown("prefix_lm_causal") == ["1.000", "", "", "0.90", "backward unmeasured"]
    assert shown("causal_blockwise") == ["", "", "", "0.90", "unmeasured"]
    assert shown("prefix_lm_document") == ["", "", "", "0.70", "unmeasured"]
    assert len(text.splitlines()) == 2 + 10, "the ten masks of the suite"


def test_the_page_of_results_names_each_choice_as_reached_missed_or_unmeasured():
    """`test_tables` holds that the block says what the records say today."""
    page = (ROOT / "docs" / "context-parallel-results.md").read_text("utf-8")
    words = (
        "<!-- view: choices results/h200/distributed aim=0.93 lower=block_causal_document,global_sliding_window "
        "lower_aim=0.9 -->"
    )
    block = page.partition(words)[2].partition("<!-- end -->")[0]
    results = [row.split("|")[-2].strip() for row in block.strip().splitlines()[2:]]
    assert len(results) == 10
    assert set(results) <= {"reached", "missed", "unmeasured", "forward unmeasured", "backward unmeasured"}
