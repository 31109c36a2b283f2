"""What the pages of context parallelism say in sentences and tables by hand is what their generated tables say."""

from __future__ import annotations

import re

import numpy as np
import pytest

from longca import Device, Problem, masks, registry
from longca.discovery.loading import load_object
from longca.errors import UnsupportedError
from longca.manifests import Transport
from longca.manifests.step_cuts import step_problems
from longca.masks import Form
from longca_advice.nominal import imbalance
from longca_bench.measuring.records import read_records
from longca_cp.pushes import LINKED_RANKS

from .docs_pages import DOCS, docs_module, said, table_rows
from .imports import ROOT

PAGE = (DOCS / "context-parallel.md").read_text("utf-8")
RESULTS = (DOCS / "context-parallel-results.md").read_text("utf-8")
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


def sent(
    strategy: str, problem: Problem, sizes: dict[str, int], placement: str, transport: Transport = Transport.AUTO
) -> float:
    """MiB that the busiest rank sends."""
    manifest = registry().strategy(strategy)
    schedule = load_object(manifest, manifest.schedule, "longca-cp")
    layout = registry().layout(strategy, problem, sizes, placement)
    return sum(move.sent for phase in schedule(problem, layout, True, transport) for move in phase.moves) / MIB


def test_how_near_strategies_come_to_the_fastest():
    most = {(row[0], row[1]): row[-1] for row in table_rows(PAGE, "ranks", "strategy", "problems")}
    times = {key: float(text.removesuffix("×")) for key, text in most.items()}
    percent = float(f"{100 * (times['4', 'ulysses'] - 1):.0f}")
    assert said(r"On four H200s it was within ([\d.]+) % of the fastest", PAGE) == (percent,)
    (four,) = (row for row in table_rows(PAGE, "ranks", "strategy", "problems") if row[:2] == ["4", "ulysses"])
    assert four[2] == four[4], "all within 3 %"
    two = said(
        r"On two H200s `ring_p2p` took at most ([\d.]+) times as long as the fastest strategy, and `ulysses` at most "
        r"([\d.]+) times",
        PAGE,
    )
    assert two == (times["2", "ring_p2p"], times["2", "ulysses"])


def test_problems_of_one_strategy():
    rows = table_rows(PAGE, "mask", "kernel", "ranks", "tokens", "fastest")
    lone = [(row[2], row[4].partition(" ")[0]) for row in rows if not row[7]]
    assert said(r"In (\d+) of the (\d+) rows \*next\* is empty", PAGE) == (len(lone), len(rows))
    wins = [float(lone.count(("2", name))) for name in ("ring_all_gather", "ulysses", "ring_p2p")]
    pattern = r"All (\d+) of them are on two ranks: `ring_all_gather` has (\d+), `ulysses` (\d+) and `ring_p2p` (\d+)\."
    assert said(pattern, PAGE) == (len(lone), *wins)
    assert sum(wins) == len(lone)


def test_on_how_many_ranks_a_ring_sends_less_than_ulysses():
    assert "With 64:8 heads that is nine ranks." in PAGE
    assert "on two ranks alone by collectives, and on up to four ranks by copy engines" in " ".join(PAGE.split())
    for ranks in (2, 4, 8):
        about = {"mask": masks.build("full", 2**16), "heads_q": 64, "heads_kv": 8, "device": Device("cpu")}
        for direction, transport, most in (
            ("forward", Transport.COLLECTIVES, 8),
            ("forward", Transport.COPY_ENGINE, 8),
            ("backward", Transport.COLLECTIVES, 2),
            ("backward", Transport.COPY_ENGINE, 4),
        ):
            problem = Problem(direction=direction, dtype="bfloat16", **about)
            ring, heads = (
                sent(strategy, problem, {axis: ranks}, "contiguous", transport)
                for strategy, axis in (("ring_p2p", "ring"), ("ulysses", "ulysses"))
            )
            assert (ring < heads) == (ranks <= most), (ranks, direction, transport)


def test_the_caption_of_the_chart_names_its_runs():
    (chart,) = (chart for chart in docs_module("charts").CHARTS if chart.file == "strategies.png")
    (caption,) = re.findall(r"\*The chart has the \[runs\].*? of 22 November", " ".join(PAGE.split()))
    runs = re.findall(r"`([\w-]+)`", caption)
    assert sorted(runs) == sorted(chart.where["run"])
    for run in runs:
        for record in read_records(ROOT / "results" / "h200" / "distributed" / run):
            assert str(record.finished).startswith("2026-11-22"), run
            assert record.moved_by is None, "older than copy engines"


def test_the_largest_share_of_one_gpu_alone():
    tables = RESULTS.partition("<!-- view: strategy-shares")[2].partition("<!-- end -->")[0]
    most = max(map(float, re.findall(r"\((\d\.\d\d)\)", tables)))
    assert said(r"the tables have shares up to ([\d.]+), and", RESULTS) == (most,)


def test_the_speed_of_the_fastest_strategy():
    shares: dict[str, list[float]] = {"2": [], "4": []}
    for row in table_rows(PAGE, "mask", "kernel", "ranks", "tokens", "fastest"):
        shares[row[2]].append(round(100 * float(row[6])))
    each = said(
        r"four GPUs run at (\d+) to (\d+) % of the speed of one GPU alone, and two GPUs at (\d+) to (\d+) %", PAGE
    )
    assert each == (min(shares["4"]), max(shares["4"]), min(shares["2"]), max(shares["2"]))
    both = shares["2"] + shares["4"]
    assert said(r"the fastest strategy runs at (\d+) to (\d+) % of the speed", RESULTS) == (min(both), max(both))


def test_how_good_placements_of_auto_are():
    found = table_rows(RESULTS, "strategy", "problems", "auto within 2%")
    counted = sum(int(row[2]) for row in found), sum(int(row[1]) for row in found)
    assert said(r"`auto` was within 2 % of the best one in (\d+) of (\d+) problems", PAGE) == counted
    most = max(float(row[-1].removesuffix("×")) for row in found)
    assert said(r"`contiguous` takes up to \[([\d.]+) times as long\]", PAGE) == (round(most, 1),)


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_placements_of_documents_send(ranks):
    mask = masks.sample("causal_document", 2**17, lengths="prolong64k", seed=3)
    problem = Problem(mask=mask, heads_q=64, heads_kv=8, device=Device("cpu"), dtype="bfloat16")
    shown = {row[0]: row[ranks - 1 : ranks + 1] for row in table_rows(PAGE, "placement", "busiest of 2 ranks")}
    for placement, (busiest, mib) in shown.items():
        layout = registry().layout("ring_all_gather", problem, {"ring": ranks}, placement)
        moved = sent("ring_all_gather", problem, {"ring": ranks}, placement)
        assert (busiest, mib) == (f"{imbalance(problem, layout):.2f}", f"{moved:.0f}"), placement
    assert len(shown) == 4


def test_layers_of_placements():
    (fa3,) = (offer.most for offer in registry().kernels["fa3"].offers if offer.form is Form.LAYERS)
    placements = ("contiguous", "zigzag", "zigzag_document", "balanced", "whole_documents")
    table = table_rows(PAGE, "mask on so many ranks", *map("`{}`".format, placements))
    assert table
    for name, *shown in table:
        pattern, ranks = re.fullmatch(r"`?(\w+)`?, (\d) ranks", name).groups()
        lengths = {"causal_document": {"lengths": "prolong64k", "seed": 3}, "shared_question": {"lengths": "mix"}}
        mask = masks.sample(pattern, 2**17, **lengths.get(pattern, {}))
        problem = Problem(mask=mask, heads_q=64, heads_kv=8, device=Device("cpu"), dtype="bfloat16")
        for placement, most in zip(placements, shown, strict=True):
            try:
                layout = registry().layout("ring_all_gather", problem, {"ring": int(ranks)}, placement)
            except UnsupportedError:
                assert most == "–", (name, placement)
                continue
            steps = [step for steps in step_problems(problem, layout) for step in steps if step is not None]
            assert int(most) == max(step.concrete_mask.count(Form.LAYERS) for step in steps) <= fa3, (name, placement)


def test_what_block_sparse_masks_send_beside_a_dense_gather():
    shown = table_rows(PAGE, "mask, in blocks of 128", "`ulysses` forward")
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


def together(run: str, pattern: str, strategy: str, transport: str = "copy_engine", *, seqlen: int) -> float:
    """The share of one GPU alone, forward and backward together, of a strategy in its best placement."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for record in read_records(ROOT / "results" / "h200" / "distributed" / run):
        moved = {way.partition("=")[2] for way in (record.moved_by or "").split(",")}
        is_asked = (record.pattern, record.strategy, moved) == (pattern, strategy, {transport})
        if is_asked and record.seqlen == seqlen and record.alone_seconds and record.median:
            found.setdefault(str(record.placed), {})[str(record.direction)] = record.alone_seconds, record.median
    shares = [sum(alone for alone, _ in each.values()) / sum(took for _, took in each.values())
              for each in found.values() if len(each) == 2]  # fmt: skip
    return max(shares)


@pytest.mark.parametrize(
    ("sentence", "run", "seqlen", "ways"),
    [
        (
            r"`ulysses` reaches (N) on the full mask and (N) on the causal one, `ring_all_gather` (N) and (N), and "
            r"`ring_p2p` (N) and (N)\.",
            "links16k",
            2**14,
            [(mask, name) for name in ("ulysses", "ring_all_gather", "ring_p2p") for mask in ("full", "causal")],
        ),
        (
            r"`ring_p2p` reaches (N) on the full mask \(the aim was 1.00\), and on the causal one (N) by the copy "
            r"engine and (N) by",
            "links64k",
            2**16,
            [("full", "ring_p2p"), ("causal", "ring_p2p"), ("causal", "ring_p2p", "collectives")],
        ),
        (
            r"`ulysses` has (N) and (N) by the copy engine \(the aims were [\d.]+ and [\d.]+, missed\), and "
            r"(N) and (N) by",
            "links64k",
            2**16,
            [(mask, "ulysses", way) for way in ("copy_engine", "collectives") for mask in ("full", "causal")],
        ),
        (
            r"`ulysses` has (N) on the full mask \(its aim of 0.95 is reached\) and (N) on the causal one \(its aim of "
            r"0.89 is missed\), `ring_p2p` (N) and (N), and `ring_all_gather` (N) and (N)\.",
            "links_again",
            2**14,
            [(mask, name) for name in ("ulysses", "ring_p2p", "ring_all_gather") for mask in ("full", "causal")],
        ),
        (
            r"`ring_p2p` has (N) on the full mask \(aim 1.00\), `ulysses` (N) \(aim 0.985\) and `ring_all_gather` (N)\."
            r" On the causal mask they have (N), (N) and (N):",
            "links_again",
            2**16,
            [(mask, name) for mask in ("full", "causal") for name in ("ring_p2p", "ulysses", "ring_all_gather")],
        ),
        (
            r"`ring_all_gather` now has (N) and `ring_p2p` (N) on these documents, and `ulysses` (N)\. On "
            r"`block_causal_document` the better placement of `ring_all_gather` has (N),",
            "placed128k",
            2**17,
            [
                *(("causal_document", name) for name in ("ring_all_gather", "ring_p2p", "ulysses")),
                ("block_causal_document", "ring_all_gather"),
            ],
        ),
    ],
)
def test_shares_of_both_directions_in_sentences(sentence, run, seqlen, ways):
    for figure, way in zip(said(sentence.replace("N", r"\d\.\d+"), RESULTS), ways, strict=True):
        digits = 0.0055 if round(figure, 2) == figure else 0.00095
        assert abs(together(run, *way, seqlen=seqlen) - figure) < digits, way


def test_the_evidence_for_links_of_more_than_two_gpus():
    """The table has every case with both transports along a longer axis, and the rule is the one that it supports."""
    took: dict[tuple[int, str, str], dict[str, dict[str, float]]] = {}
    for folder in sorted((ROOT / "results").glob("h*00/distributed/*/records.jsonl")):
        for record in read_records(folder.parent):
            axis, _, way = (record.moved_by or "").partition("=")
            if not record.median or "," in way or (record.mesh or "") == f"{axis}={LINKED_RANKS}":
                continue
            case = took.setdefault((record.seqlen, f"{record.pattern}", f"{record.strategy}"), {})
            case.setdefault(f"{record.direction}", {})[f"{way}, {folder.parent.name}"] = record.median
    found = {}
    for about, case in took.items():
        for direction, by in case.items():
            for name, seconds in by.items():
                way, _, run = name.partition(", ")
                if way == "copy_engine" and (other := by.get(f"collectives, {run}")):
                    found[*about, direction] = seconds / other
    said_cells = {}
    for tokens, mask, strategy, *cells in table_rows(PAGE, "tokens", "mask", "strategy", "forward"):
        for direction, cell in zip(("forward", "backward"), cells, strict=True):
            if cell != "–":
                said_cells[int(tokens.split()[0]) * 1024, mask, strategy, direction] = float(cell)
    assert said_cells == {about: round(ratio, 2) for about, ratio in found.items()}
    assert max(ratio for (seqlen, *_), ratio in found.items() if seqlen == 2**14) > 1.05, "no link by default"


def transport_shares(gpu: str) -> dict[tuple[object, ...], dict[str, dict[str, list[float]]]]:
    """The shares of one GPU alone of each case: by the transport of its axes of several ranks, and by the run."""
    found: dict[tuple[object, ...], dict[str, dict[str, list[float]]]] = {}
    for folder in sorted((ROOT / "results" / gpu / "distributed").glob("*/records.jsonl")):
        for record in read_records(folder.parent):
            sizes = dict(axis.split("=") for axis in (record.mesh or "").split(",") if axis)
            moved = dict(axis.split("=") for axis in (record.moved_by or "").split(",") if axis)
            ways = {way for axis, way in moved.items() if int(sizes[axis]) > 1}
            if len(ways) == 1 and record.alone_seconds and record.median:
                about = record.kernel, record.strategy, record.mesh, record.placed, record.direction
                by_run = found.setdefault((record.mask_digest, *about), {}).setdefault(*ways, {})
                by_run.setdefault(folder.parent.name, []).append(record.alone_seconds / record.median)
    return {case: ways for case, ways in found.items() if len(ways) == 2}


def medians(ways: dict[str, dict[str, list[float]]]) -> tuple[float, float]:
    """A case's shares by copy engines and by collectives, over the runs with both, or over all runs without such."""
    pushed, collective = ways["copy_engine"], ways["collectives"]
    both = pushed.keys() & collective.keys()
    one, other = (
        [share for run, found in each.items() if run in (both or each) for share in found]
        for each in (pushed, collective)
    )
    return float(np.median(one)), float(np.median(other))


def test_in_how_many_cases_the_copy_engine_is_as_fast_as_collectives():
    counted: list[int] = []
    for gpu, within_runs in (("h200", 3), ("h100", 7)):
        cases = transport_shares(gpu)
        shares = {case: medians(ways) for case, ways in cases.items()}
        behind = sorted((one - other, one, other, case) for case, (one, other) in shares.items() if one < other - 0.005)
        counted += [len(cases) - len(behind), len(cases)]
        within = [case for *_, case in behind if cases[case]["copy_engine"].keys() & cases[case]["collectives"].keys()]
        assert len(within) == within_runs, "the page says how many are compared within runs"
        if gpu == "h200":
            furthest = tuple(round(share, 3) for _, *pair, _ in behind[:2] for share in pair)
            pattern = r"`full_document` with ([\d.]+) and ([\d.]+), and `shared_question` with ([\d.]+) and ([\d.]+)\."
            assert said(pattern, RESULTS) == furthest
    pattern = r"or faster in (\d+) of (\d+) cases\. On two and four H100s it is so in (\d+) of (\d+)"
    assert said(pattern, RESULTS) == tuple(counted)
    assert said(r"in (\d+) of (\d+) measured cases on two H200s, and in (\d+) of (\d+) on two", PAGE) == tuple(counted)


@pytest.mark.parametrize(
    ("run", "strategy", "said_ratio"),
    [
        ("h200/distributed/dynamic64k", "ulysses", 1.013),
        ("h100/distributed/dynamic64k", "ring_p2p", 1.006),
        ("h100/distributed/dynamic64k_ring_all_gather", "ring_all_gather", 1.002),
        ("h100/distributed/dynamic64k_usp", "usp", 1.006),
        ("h100/distributed/dynamic64k_loongtrain", "loongtrain", 1.019),
    ],
)
def test_prefetched_steps_of_a_stream_take_hardly_longer_than_fixed_ones(run, strategy, said_ratio):
    (record,) = read_records(ROOT / "results" / run)
    assert (record.status, record.strategy, len(record.samples)) == ("ok", strategy, 50)
    assert record.verified_kv_heads == tuple(range(8)), "the steps verified all heads by turns"
    ratio = sum(record.stream.prefetched) / sum(record.stream.fixed)
    assert ratio <= 1.02, "the aim"
    assert round(ratio, 3) == said_ratio, "the pages say how long they take"
    assert f"{said_ratio} times" in " ".join(PAGE.split()) or f"`{strategy}` {said_ratio}" in PAGE
