"""Views of several ranks on small records that are made by hand."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from longca.errors import RequestError
from longca_bench.reports.chart_by_strategy import draw_by_strategy, strategy_points
from longca_bench.reports.html.payload import payload
from longca_bench.reports.rows import Rows

from .strategy_records import PEERS, finding, line, lines, matrix, part, record, write


def test_shares_are_of_each_gpu_beside_one_alone_with_the_best_in_bold(tmp_path):
    text = part("strategy-shares", write(tmp_path / "x", matrix()))
    assert "### fa3, 32 K tokens on 4 ranks, 64:8 heads of 128" in text
    assert line(text, "strategy", "placement") == ["full forward", "full backward"]
    assert line(text, "*one GPU alone*", "") == ["*100*", "*100*"]
    assert line(text, "*all GPUs abreast*", "") == ["*80.0*", "*80.0*"]
    assert line(text, "`ulysses`", "`zigzag`") == ["**80.0 (0.80)**", "**80.0 (0.80)**"]
    assert line(text, "`usp 2×2`", "`zigzag`") == ["40.0 (0.40)", "40.0 (0.40)"]


def test_a_table_a_kernel_number_of_ranks_and_length(tmp_path):
    more = [*matrix(), *matrix(seqlen=2**17), *matrix(world_size=2), *matrix(kernel="fa4")]
    text = part("strategy-shares", write(tmp_path / "x", more))
    assert re.findall(r"^### (.*), 64:8 heads of 128$", text, re.MULTILINE) == [
        "fa3, 32 K tokens on 2 ranks",
        "fa3, 32 K tokens on 4 ranks",
        "fa3, 128 K tokens on 4 ranks",
        "fa4, 32 K tokens on 4 ranks",
    ]


def test_a_placement_is_one_line_whether_it_was_asked_for_or_taken_by_auto(tmp_path):
    taken = record("ring_p2p", 1.0, placement="auto", placed="zigzag")
    other = record("ring_p2p", 4.0, placement="balanced", placed="balanced")
    text = part("strategy-shares", write(tmp_path / "x", [record("ring_p2p", 2.0), taken, other]))
    assert line(text, "`ring_p2p`", "`zigzag`")[0] == "**75.0 (0.75) •**", "the median of 50 and 100"
    assert line(text, "`ring_p2p`", "`balanced`")[0] == "25.0 (0.25)"


def test_bounds_are_of_both_directions_together_and_by_the_slowest_rank(tmp_path):
    runs = [
        record("ulysses", 2.0, direction="forward", rank_compute_seconds=(0.5, 1.5)),
        record("ulysses", 3.0, direction="backward", rank_compute_seconds=(2.5, 1.0)),
        record("ring_p2p", 2.0),
    ]
    text = part("bounds", write(tmp_path / "x", runs))
    assert line(text, "`run0`", "`full`") == ["`ulysses`", "0.600", "0.800", "0.750"], "one direction is no case"


def test_transports_are_beside_each_other_and_a_forced_one_is_a_way_of_its_own(tmp_path):
    runs = [
        record("ring_p2p", 2.0, moved_by="ring=collectives", transport="collectives"),
        record("ring_p2p", 1.25, moved_by="ring=copy_engine"),
        record("usp", 2.5, moved_by="ring=collectives,ulysses=copy_engine"),
        record("ulysses", 1.0),
    ]
    folder = write(tmp_path / "x", runs)
    found = part("transports", folder)
    assert "### fa3 forward, 32 K tokens on 4 ranks, 64:8 heads of 128" in found
    ways = ["`collectives`", "`copy_engine`", "`ring=collectives,ulysses=copy_engine`"]
    head = line(found, "mask", "strategy", "mesh", "placement")
    assert [name.strip("`") for name in head] == [way.strip("`") for way in ways]
    assert line(found, "`full`", "`ring_p2p`", "`ring=4`", "`zigzag`")[:2] == [
        "2000 / 0.50 / 25%",
        "**1250 / 0.80 / 25%**",
    ]
    assert "ulysses`" not in found.replace("ulysses=copy_engine`", ""), "earlier records do not say what moved them"
    shares = part("strategy-shares", folder)
    assert line(shares, "`ring_p2p by collectives`", "`zigzag`") == ["50.0 (0.50)"]
    assert line(shares, "`ring_p2p`", "`zigzag`") == ["80.0 (0.80)"]


def test_a_share_is_taken_in_one_record(tmp_path):
    faster = [record("ulysses", 2.5, alone_seconds=2.0)]
    text = part("strategy-shares", write(tmp_path / "x", matrix(), faster))
    assert line(text, "`ulysses`", "`zigzag`")[0] == "60.0 (0.80)"


def test_failures_are_words_and_refusals_of_all_masks_have_no_line(tmp_path):
    records = [*matrix("shared_question"), *matrix("prefix_lm_causal")]
    records += [
        record("usp", 9.0, pattern="shared_question", placement="balanced", placed="balanced"),
        record("usp", None, pattern="prefix_lm_causal", placement="balanced", status="oom", message="memory"),
        record("ring_p2p", None, pattern="shared_question", placement="contiguous"),
        record("ring_p2p", 0.5, pattern="prefix_lm_causal", placement="balanced", placed="balanced",
               alone_seconds=None),
    ]  # fmt: skip
    text = part("strategy-shares", write(tmp_path / "x", records))
    assert line(text, "`usp 2×2`", "`balanced`")[2] == "OOM"
    assert not lines(text, "`ring_p2p`", "`contiguous`")
    assert "200" in line(text, "`ring_p2p`", "`balanced`")[2], (
        "there is no share where the kernel alone was not measured"
    )


def test_the_fastest_is_that_of_forward_and_backward_together(tmp_path):
    records = [*matrix(), record("ring_p2p", 0.5), record("ring_p2p", 40.0, direction="backward")]
    text = part("fastest-strategies", write(tmp_path / "x", [r for r in records if r.strategy != "ulysses"]))
    fastest = ["`ring_all_gather`", "`zigzag`", "0.62", "`usp 2×2`", "`zigzag`", "1.56×"]
    assert line(text, "`full`", "`fa3`", "4", "32 K") == fastest


def test_a_way_that_lacks_a_direction_is_not_the_fastest(tmp_path):
    text = part("fastest-strategies", write(tmp_path / "x", [*matrix(), record("usp", 0.1, mesh="ring=4,ulysses=1")]))
    assert line(text, "`full`", "`fa3`", "4", "32 K")[0] == "`ulysses`"


def test_a_mesh_without_a_ring_is_no_strategy_of_its_own(tmp_path):
    two = {"world_size": 2, "seqlen": 2**14}
    runs = [
        record("ulysses", 1.5, mesh="ulysses=2", **two),
        record("usp", 1.25, mesh="ring=1,ulysses=2", **two),
        record("ring_p2p", 2.0, mesh="ring=2", **two),
    ]
    folder = write(tmp_path, runs)
    assert [row[3] for row in lines(part("fastest-strategies", folder), "`full`")] == ["`ulysses`"]
    assert not lines(part("strategy-pairs", folder), "`usp`")
    assert lines(part("strategy-shares", folder), "`usp 1×2`"), "it was measured all the same"


def test_pairs_and_ranking_count_problems(tmp_path):
    folder = write(tmp_path / "x", [*matrix(), *matrix("causal")])
    pairs = part("strategy-pairs", folder)
    assert line(pairs, "faster")[0] == "than ulysses"
    assert line(pairs, "`ulysses`") == ["", *["2 of 2"] * 4]
    assert line(pairs, "`usp`")[1] == "0 of 2", "usp is never faster than ring_p2p"
    ranking = part("strategy-ranking", folder)
    assert line(ranking, "4", "`ulysses`") == ["2", "2", "2", "1.00×", "1.00×"]
    assert line(ranking, "4", "`loongtrain`") == ["2", "0", "0", "3.20×", "3.20×"]


def test_auto_and_contiguous_are_compared_with_the_fastest_placement(tmp_path):
    contiguous = {"placement": "contiguous", "placed": "contiguous"}
    records = [*matrix("causal"), record("ring_p2p", 3.0, pattern="causal", **contiguous)]
    records += [record("ring_p2p", 6.0, pattern="causal", direction="backward", **contiguous)]
    records += [record("ring_p2p", 2.0, pattern="causal", placement="auto")]
    by_auto = {"pattern": "causal", "placement": "auto", "mesh": "ring=4"}
    records += [record("ring_all_gather", 2.0, placed=placed, **by_auto) for placed in ("zigzag", "balanced")]
    text = part("auto-placements", write(tmp_path / "x", records))
    assert line(text, "`ring_p2p`") == ["1", "1", "1.00×", "1.50×", "1.50×"]
    assert not lines(text, "`ring_all_gather`"), "auto took both"


def test_time_is_of_one_placement(tmp_path):
    records = [*matrix(), record("ring_p2p", 1.5, placement="auto", seqlen=2**17)]
    rows = Rows.read(write(tmp_path / "x", records)).where(placement="auto")
    text = part("strategy-time", tmp_path / "x")
    assert len(rows) == 1
    row = ["`zigzag`", "1500", "1250", "750", "250", "25%", "–", "–", "1.50", "1.25", "2.00", "1.00"]
    assert row in lines(text, "`full`", "`ring_p2p`")


def test_what_is_hidden_has_its_interval_beside_it(tmp_path):
    known = record("ring_p2p", 1.5, hidden_interval=(0.125, 0.5))
    unknown = record("usp", 1.5, hidden=None, hidden_interval=(0.0, 1.0))
    text = part("strategy-time", write(tmp_path / "x", [known, unknown]))
    (head,) = {tuple(each) for each in lines(text, "mask", "strategy")}
    place = head.index("hidden")
    assert head[place : place + 3] == ("hidden", "at least", "at most")
    shown = {name: line(text, "`full`", f"`{name}`")[place : place + 3] for name in ("ring_p2p", "usp 2×2")}
    assert shown == {"ring_p2p": ["25%", "12%", "50%"], "usp 2×2": ["–", "0%", "100%"]}


def test_nothing_is_said_of_hidden_where_computing_alone_took_longer_than_the_whole(tmp_path):
    about = {"hidden": 1.0, "hidden_interval": (0.5, 1.0), "moved_by": "ring=copy_engine"}
    records = [
        record("ring_p2p", 1.5, rank_compute_seconds=(1.0, 1.6), **about),
        record("usp", 1.5, rank_compute_seconds=(1.0, 1.5), **about),
    ]
    text = part("strategy-time", write(tmp_path / "x", records))
    (head,) = {tuple(each) for each in lines(text, "mask", "strategy")}
    place = head.index("hidden")
    shown = {name: line(text, "`full`", f"`{name}`")[place : place + 3] for name in ("ring_p2p", "usp 2×2")}
    assert shown == {"ring_p2p": ["–", "–", "–"], "usp 2×2": ["100%", "50%", "100%"]}
    assert payload(Rows.of(records))["columns"]["hidden"] == [None, 1.0]


def test_collectives_are_by_kind(tmp_path):
    text = part("collectives", write(tmp_path / "x", matrix()))
    assert line(text, "`ring_p2p`", "forward", "p2p") == ["3", "3.00", "250", "300", "299"]
    assert not lines(text, "`ring_p2p`", "forward", "all"), "where there is one kind"


def test_memory_is_the_highest_peak_beside_the_formula(tmp_path):
    higher = record("ring_p2p", 2.0, peak_bytes=2 * 2**30, pattern="causal")
    text = part("strategy-memory", write(tmp_path / "x", [*matrix(), higher]))
    # 8 K tokens a rank: Q is 128 MiB and KV 32, so that a ring's forward takes 2 · 32 + 2 · 128 + 2 · 128.
    assert line(text, "`ring_p2p`")[:3] == ["2.00", "0.56", "+1.44"]
    assert part("strategy-memory", write(tmp_path / "y", [record("ring_p2p", 2.0, peak_bytes=None)])) == ""


def test_errors_are_the_worst_beside_those_of_the_kernel_alone(tmp_path):
    worse = record("usp", 1.0, pattern="causal", findings=(finding("out", 5e-3), finding("out after timing", 9e-3)))
    text = part("strategy-errors", write(tmp_path / "x", [*matrix(), worse]))
    assert line(text, "`usp`") == ["3", "5.0e-03 / 3.0e-03", *["4.0e-03 / 3.0e-03"] * 3]
    assert line(text, "`ulysses`")[:2] == ["2", "4.0e-03 / 3.0e-03"]


def test_errors_stand_alone_where_the_kernel_alone_was_not_verified(tmp_path):
    forwards = [record("usp", 1.0), record("ulysses", 1.0, alone_findings=())]
    text = part("strategy-errors", write(tmp_path / "x", forwards))
    assert line(text, "`usp`")[:2] == ["1", "4.0e-03 / 3.0e-03"]
    assert line(text, "`ulysses`")[:2] == ["1", "4.0e-03"]


def test_shares_have_no_limit_that_was_not_measured(tmp_path):
    uneven = [record("usp", 2.0, alone_seconds=None, abreast_seconds=None), record("usp", 2.0, seqlen=2**16)]
    text = part("strategy-shares", write(tmp_path / "x", uneven))
    assert text.count("one GPU alone") == text.count("all GPUs abreast") == 1
    assert text.index("64 K tokens") < text.index("one GPU alone")


def test_verified_is_what_was_right(tmp_path):
    text = part("verified", write(tmp_path / "x", [record("usp", 1.0), record("usp", None, pattern="causal")]))
    assert line(text, "`usp`") == ["`ring=2,ulysses=2`", "`zigzag`", "`full`", "1"]


def test_gaps_are_cases_of_the_suite_without_a_record(tmp_path):
    text = part("strategy-gaps", write(tmp_path / "x", matrix()))
    recorded, lacking = line(text, "4", "`fa3`", "32 K", "forward")
    assert re.fullmatch(r"4 of \d+", recorded), "all but ulysses, which has but one placement, and so no zigzag"
    assert lacking == "all masks"


def test_peers_are_below_the_strategy_that_does_the_same(tmp_path):
    text = part("peers", write(tmp_path / "x", matrix()) / "peers.json")
    assert "### full, 32 K tokens" in text
    assert "Measured with yunchang 0.6, NCCL 2.28." in text
    assert "absent: No module named 'absent'" in text
    order = re.findall(r"^\| (\*[\w ]+\*|\w+|– [\w ]+) \| *\w* *\|", text, re.MULTILINE)[1:]
    assert order == ["*one GPU alone*", "*all GPUs abreast*", "ring_p2p", "– theirs ring", "usp", "– absent"]
    assert line(text, "ring_p2p", "zigzag")[:3] == ["**800**", "0.80", ""]
    assert line(text, "– theirs ring", "")[:3] == ["667", "0.67", "1.20"]
    assert line(text, "– absent", "")[:3] == ["unavailable", "", ""]


def test_a_peer_is_compared_with_the_faster_transport(tmp_path):
    def twice(name: str, forward: float, backward: float, **about: Any) -> list[dict[str, Any]]:
        same = {"seqlen": 2**15, "mask": "full", "status": "ok", "message": "", "of_alone": 0.5, "name": name, **about}
        both = (("forward", forward), ("backward", backward))
        return [{**same, "direction": way, "milliseconds": ms, "tflops": 1e3 / ms} for way, ms in both]

    ours = {"kind": "ours", "peer_of": None, "placement": "contiguous"}
    rows = [*twice("ulysses by collectives", 4.0, 10.0, **ours), *twice("ulysses by copy_engine", 5.0, 8.0, **ours)]
    rows += twice("theirs", 10.0, 16.0, kind="peer", peer_of="ulysses")
    file = tmp_path / "peers.json"
    file.write_text(json.dumps({"versions": {}, "rows": rows}), encoding="utf-8")
    text = part("peers", file)
    order = [name for name in ("collectives", "copy_engine", "theirs") if name in text]
    assert sorted(order, key=text.index) == order
    assert line(text, "– theirs", "")[2::3] == ["2.00", "2.00"], "13 ms are fewer than 14"


def test_peers_without_failures_have_no_reasons(tmp_path):
    text = part("peers", write(tmp_path / "x", matrix(), peers=PEERS[:3]) / "peers.json")
    assert "absent" not in text
    with pytest.raises(RequestError, match="cannot read"):
        part("peers", tmp_path / "nowhere.json")


def test_overlap_compares_chunks_and_transfers(tmp_path):
    def row(share: float, **way: Any) -> dict[str, Any]:
        about = {"seqlen": 2**15, "mask": "full", "direction": "forward", "milliseconds": 1.0, "of_alone": share}
        return about | ({"chunks": None, "beside": None} | way if way else {})

    ulysses = [row(share, strategy="ulysses", chunks=chunks) for share, chunks in ((0.5, 2), (0.75, 1))]
    rings = [row(share, strategy="ring_p2p", beside=beside) for share, beside in ((0.625, False), (0.5, True))]
    file = tmp_path / "overlap.json"
    file.write_text(json.dumps({"ranks": 4, "rows": [row(1.0), *ulysses, *rings]}), encoding="utf-8")
    text = part("overlap", file)
    assert re.findall(r"^### (.*)$", text, re.MULTILINE) == ["ulysses", "ring_p2p"]
    assert [line(text, "1 chunk"), line(text, "2 chunks")] == [["**0.75**"], ["0.50"]]
    assert [line(text, "transfers beside a step"), line(text, "transfers before it")] == [["0.50"], ["**0.62**"]]


def test_the_chart_has_a_point_for_each_strategy(tmp_path):
    rows = Rows.read(write(tmp_path / "x", matrix()))
    points = strategy_points(rows)
    assert dict(zip(points["strategy"], points["of_alone"], strict=True))["ulysses"] == pytest.approx(0.8)
    draw_by_strategy(rows, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 5000
