"""What the pages of context parallelism say in sentences and tables by hand is what their generated tables say."""

from __future__ import annotations

import re

import numpy as np
import pytest

from longca import Device, Problem, masks, registry
from longca.discovery.loading import load_object
from longca_advice.nominal import imbalance

from .imports import ROOT

PAGE = (ROOT / "docs" / "context-parallel.md").read_text("utf-8")
RESULTS = (ROOT / "docs" / "context-parallel-results.md").read_text("utf-8")
MIB = 2**20
#: The block-sparse masks of the table of bytes, by the words of its rows.
BLOCKS = {
    "full": lambda n: masks.build("full", n),
    "half of the blocks, at random": lambda n: masks.sample("uniform_block_sparse", n, block=128, kept=0.5),
    "a tenth of the blocks, at random": lambda n: masks.sample("uniform_block_sparse", n, block=128, kept=0.1),
    "the 32 nearest blocks on either side": lambda n: nearest(n, 128, 32),
}


def nearest(seqlen: int, block: int, reach: int) -> masks.BlockSparseMask:
    """A block-sparse mask whose query blocks keep the key blocks around them."""
    at = np.arange(seqlen // block)
    bounds = np.arange(0, seqlen + 1, block)
    return masks.BlockSparseMask(abs(at[:, None] - at) <= reach, bounds, bounds)


def sent(strategy: str, problem: Problem, sizes: dict[str, int], placement: str) -> float:
    """MiB that the busiest rank sends."""
    manifest = registry().strategy(strategy)
    schedule = load_object(manifest, manifest.schedule, "longca-cp")
    layout = registry().layout(strategy, problem, sizes, placement)
    return sum(move.sent for phase in schedule(problem, layout, True) for move in phase.moves) / MIB


def rows(page: str, *head: str) -> list[list[str]]:
    """The rows of the table whose head begins with some cells."""
    lines = page.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith(f"| {' | '.join(head)} |"))
    found = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            return found
        found.append([cell.strip().strip("`") for cell in line.strip("|").split(" | ")])
    return found


def said(pattern: str, page: str = PAGE) -> tuple[float, ...]:
    """The numbers of a sentence, given as a pattern of its words with groups for the numbers."""
    (found,) = re.findall(pattern, " ".join(page.split()))
    return tuple(map(float, found if isinstance(found, tuple) else (found,)))


def test_how_near_strategies_come_to_the_fastest():
    most = {(row[0], row[1]): row[-1] for row in rows(PAGE, "ranks", "strategy", "problems")}
    percent = {key: float(f"{100 * (float(times.removesuffix('×')) - 1):.0f}") for key, times in most.items()}
    assert said(r"On four H200s it was within ([\d.]+) % of the fastest") == (percent["4", "ulysses"],)
    two = said(r"On two H200s `ring_p2p` was within ([\d.]+) % of the fastest, and `ulysses` within ([\d.]+) %")
    assert two == (percent["2", "ring_p2p"], percent["2", "ulysses"])


def test_the_speed_of_the_fastest_strategy():
    shares: dict[str, list[float]] = {"2": [], "4": []}
    for row in rows(PAGE, "mask", "kernel", "ranks", "tokens", "fastest"):
        shares[row[2]].append(round(100 * float(row[6])))
    each = said(r"four GPUs run at (\d+) to (\d+) % of the speed of one GPU alone, and two GPUs at (\d+) to (\d+) %")
    assert each == (min(shares["4"]), max(shares["4"]), min(shares["2"]), max(shares["2"]))
    both = shares["2"] + shares["4"]
    assert said(r"the fastest strategy runs at (\d+) to (\d+) % of the speed", RESULTS) == (min(both), max(both))


def test_how_good_placements_of_auto_are():
    found = rows(RESULTS, "strategy", "problems", "auto within 2%")
    counted = sum(int(row[2]) for row in found), sum(int(row[1]) for row in found)
    assert said(r"`auto` was within 2 % of the best one in (\d+) of (\d+) problems") == counted
    most = max(float(row[-1].removesuffix("×")) for row in found)
    assert said(r"`contiguous` takes up to \[([\d.]+) times as long\]") == (round(most, 1),)


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_placements_of_documents_send(ranks):
    mask = masks.sample("causal_document", 2**17, lengths="prolong64k", seed=3)
    problem = Problem(mask=mask, heads_q=64, heads_kv=8, device=Device("cpu"), dtype="bfloat16")
    shown = {row[0]: row[ranks - 1 : ranks + 1] for row in rows(PAGE, "placement", "busiest of 2 ranks")}
    for placement, (busiest, mib) in shown.items():
        layout = registry().layout("ring_all_gather", problem, {"ring": ranks}, placement)
        moved = sent("ring_all_gather", problem, {"ring": ranks}, placement)
        assert (busiest, mib) == (f"{imbalance(problem, layout):.2f}", f"{moved:.0f}"), placement
    assert len(shown) == 4


def test_what_block_sparse_masks_send_beside_a_dense_gather():
    shown = rows(PAGE, "mask, in blocks of 128", "`ulysses` forward")
    assert [row[0] for row in shown] == list(BLOCKS)
    ways = [("ulysses", "ulysses"), ("ring_p2p", "ring"), ("ring_all_gather", "ring")]
    for name, *figures in shown:
        mask = BLOCKS[name](2**16)
        about = {"mask": mask, "heads_q": 64, "heads_kv": 8, "device": Device("cpu"), "dtype": "bfloat16"}
        moved = [
            sent(strategy, Problem(direction=direction, **about), {axis: 2}, "contiguous")
            for strategy, axis in ways
            for direction in ("forward", "backward")
        ]
        assert figures == [f"{each:.0f}" for each in moved], name
