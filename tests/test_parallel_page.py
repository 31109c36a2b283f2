"""The measured parts of the page on context parallelism, built from small records made by hand."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from .docs_pages import DOCS, docs_module
from .parallel_records import PEERS, finding, line, lines, matrix, part, record, write

PAGE = DOCS / "context-parallel.md"


def test_throughput_is_of_each_gpu_beside_one_alone_with_the_best_in_bold(tmp_path):
    text = part("throughput", write(tmp_path / "x", matrix()))
    assert "### `fa3`, 32 K tokens on 4 ranks, 64:8 heads of 128" in text
    assert line(text, "strategy", "placement") == ["`full` forward", "`full` backward"]
    assert line(text, "*one GPU alone*", "") == ["100", "100"]
    assert line(text, "*all GPUs abreast*", "") == ["80.0", "80.0"]
    assert line(text, "`ulysses`", "`zigzag`") == ["**80.0 (0.80)**", "**80.0 (0.80)**"]
    assert line(text, "`usp` ring 2, ulysses 2", "`zigzag`") == ["40.0 (0.40)", "40.0 (0.40)"]


def test_a_table_a_kernel_length_and_number_of_ranks(tmp_path):
    more = [*matrix(), *matrix(seqlen=2**17), *matrix(world_size=2), *matrix(kernel="fa4")]
    titles = re.findall(r"^### (.*), 64:8 heads of 128$", part("throughput", write(tmp_path / "x", more)), re.MULTILINE)
    assert titles == [
        "`fa3`, 32 K tokens on 2 ranks",
        "`fa3`, 32 K tokens on 4 ranks",
        "`fa3`, 128 K tokens on 4 ranks",
        "`fa4`, 32 K tokens on 4 ranks",
    ]


def test_a_placement_is_one_row_whether_it_was_asked_for_or_taken_by_auto(tmp_path):
    taken = record("ring_p2p", 1.0, placement="auto", placed="zigzag")
    other = record("ring_p2p", 4.0, placement="balanced", placed="balanced")
    text = part("throughput", write(tmp_path / "x", [record("ring_p2p", 2.0), taken, other]))
    assert line(text, "`ring_p2p`", "`zigzag`")[0] == "**75.0 (0.75) •**", "the median of 50 and 100"
    assert line(text, "`ring_p2p`", "`balanced`")[0] == "25.0 (0.25)"


def test_a_share_is_taken_in_one_record(tmp_path):
    faster = [record("ulysses", 2.5, alone_seconds=2.0)]
    text = part("throughput", write(tmp_path / "x", matrix(), faster))
    assert line(text, "`ulysses`", "`zigzag`")[0] == "60.0 (0.80)"


def test_ratios_are_of_other_masks_by_direction(tmp_path):
    records = [*matrix("shared_question"), *matrix("prefix_lm_causal"), *matrix()]
    records += [
        record("usp", None, pattern="shared_question", placement="balanced"),
        record("usp", None, pattern="prefix_lm_causal", placement="balanced", status="oom", message="memory"),
        record(
            "ring_p2p", 0.5, pattern="prefix_lm_causal", placement="balanced", placed="balanced", alone_seconds=None
        ),
    ]
    text = part("ratios", write(tmp_path / "x", records))
    titles = re.findall(r"^### .*: (\w+)$", text, re.MULTILINE)
    assert titles == ["forward", "backward"]
    assert lines(text, "strategy", "placement")[0] == ["`prefix_lm_causal`", "`shared_question`"]
    assert lines(text, "`ulysses`", "`zigzag`")[0] == ["**0.80**", "**0.80**"]
    assert line(text, "`usp` ring 2, ulysses 2", "`balanced`") == ["OOM", "–"]
    assert line(text, "`ring_p2p`", "`balanced`") == ["500 ms", ""], "where the kernel alone does not take the mask"


def test_what_no_kernel_takes_has_no_row(tmp_path):
    records = [*matrix("shared_question"), record("usp", None, pattern="shared_question", placement="balanced")]
    assert "`balanced`" not in part("ratios", write(tmp_path / "x", records))


def test_peers_are_below_what_they_are_peers_of(tmp_path):
    text = part("peers", write(tmp_path / "x", matrix()))
    assert text.startswith("yunchang 0.6, NCCL 2.28, the peers' kernel: theirs.")
    assert "### `full`, 32 K tokens" in text
    order = re.findall(r"^\| (\*[\w ]+\*|`\w+`|– [\w ]+) \|", text, re.MULTILINE)
    assert order == ["*one GPU alone*", "*all GPUs abreast*", "`ring_p2p`", "– theirs ring", "`usp`", "– absent"]
    assert line(text, "`ring_p2p`", "zigzag")[:3] == ["**800**", "0.80", ""]
    assert line(text, "– theirs ring", "")[:3] == ["667", "0.67", "1.20"]
    assert line(text, "– absent", "")[:3] == ["unavailable", "", ""]


def test_the_best_is_that_of_forward_and_backward_together(tmp_path):
    records = [*matrix(), record("ring_p2p", 0.5), record("ring_p2p", 40.0, direction="backward")]
    text = part("best", write(tmp_path / "x", [r for r in records if r.strategy != "ulysses"]))
    quickest = ["`ring_all_gather`", "`zigzag`", "0.62", "`usp` ring 2, ulysses 2", "`zigzag`", "1.56×"]
    assert line(text, "`full`", "`fa3`", "4", "32 K") == quickest


def test_expectations_say_in_how_many_cases_they_hold(tmp_path):
    contiguous = {"placement": "contiguous", "placed": "contiguous"}
    records = [*matrix(), *matrix("causal"), record("ring_p2p", 3.0, pattern="causal", **contiguous)]
    records += [record("ring_p2p", 6.0, pattern="causal", direction="backward", **contiguous)]
    records += [record("ring_p2p", 2.0, pattern="causal", placement="auto")]
    text = part("expectations", write(tmp_path / "x", records))
    assert line(text, "`ulysses` is the quickest of all") == ["2 of 2"]
    assert line(text, "`usp` is quicker than `ring_p2p`") == ["0 of 2"]
    assert line(text, "on a causal mask some placement is quicker than `contiguous`") == ["1 of 1"]
    assert line(text, "what `auto` took is within 2% of the quickest placement") == ["1 of 1"]
    assert line(text, "the longer sequence comes nearer to the kernel alone") == ["not measured"]
    assert line(text, "`ring_p2p` hides more than half of its communication") == ["0 of 4"]
    longer = part("expectations", write(tmp_path / "y", [*matrix(), *matrix(seqlen=2**17)]))
    assert line(longer, "the longer sequence comes nearer to the kernel alone") == ["0 of 5"]


def test_time_is_that_of_the_largest_setting_by_auto(tmp_path):
    records = [*matrix(), *matrix(seqlen=2**17), record("ring_p2p", 1.5, placement="auto", seqlen=2**17)]
    text = part("time", write(tmp_path / "x", records))
    assert "32 K" not in text
    row = ["`zigzag`", "1500", "1250", "750", "250", "25%", "1.50", "1.25", "2.00", "1.00"]
    assert lines(text, "`full`", "`ring_p2p`")[0] == row


def test_bandwidths_are_by_kind(tmp_path):
    text = part("bandwidth", write(tmp_path / "x", matrix()))
    assert line(text, "`ring_p2p`", "forward", "p2p") == ["3", "3.00", "250", "300", "299"]
    assert not lines(text, "`ring_p2p`", "forward", "all"), "where there is one kind"


def test_memory_is_the_highest_peak_beside_the_formula(tmp_path):
    higher = record("ring_p2p", 2.0, peak_bytes=2 * 2**30, pattern="causal")
    text = part("memory", write(tmp_path / "x", [*matrix(), higher]))
    # 8 K tokens a rank: Q is 128 MiB and KV 32, so that a ring's forward takes 2 · 32 + 2 · 128 + 2 · 128.
    assert line(text, "`ring_p2p`")[:3] == ["2.00", "0.56", "+1.44"]
    nowhere = part("memory", write(tmp_path / "y", [record("ring_p2p", 2.0, peak_bytes=None)]))
    assert nowhere.startswith("*Not known")


def test_memory_by_ranks_is_where_each_has_as_many_tokens(tmp_path):
    half = {"world_size": 2, "mesh": "ring=2", "peak_bytes": 2**29}
    records = [*matrix(), record("ring_p2p", 2.0, seqlen=2**14, **half), record("ring_p2p", 2.0, **half)]
    text = part("memory_by_ranks", write(tmp_path / "x", records))
    assert text.startswith("`fa3`, 8 K tokens for each rank")
    assert line(text, "`ring_p2p`") == ["0.50", "1.00", "–", "1.00"]
    assert part("memory_by_ranks", write(tmp_path / "y", matrix())).startswith("*Not measured")


def test_errors_are_the_worst_beside_those_of_the_kernel_alone(tmp_path):
    worse = record("usp", 1.0, pattern="causal", findings=(finding("out", 5e-3), finding("out after timing", 9e-3)))
    text = part("errors", write(tmp_path / "x", [*matrix(), worse]))
    assert line(text, "`usp`") == ["3", "5.0e-03 / 3.0e-03", *["4.0e-03 / 3.0e-03"] * 3]
    assert line(text, "`ulysses`")[:2] == ["2", "4.0e-03 / 3.0e-03"]


def test_what_was_covered_is_what_was_right(tmp_path):
    text = part("covered", write(tmp_path / "x", [record("usp", 1.0), record("usp", None, pattern="causal")]))
    assert line(text, "`usp`") == ["`ring=2,ulysses=2`", "`zigzag`", "`full`", "1"]


def test_what_was_not_measured_has_its_reason_and_strategies(tmp_path):
    refused = [
        record(strategy, None, placement="zigzag_document", message=f"{n} documents", pattern=pattern)
        for n, strategy in enumerate(("usp", "ring_p2p"))
        for pattern in ("full", "causal")
    ]
    text = part("not_measured", write(tmp_path / "x", [*matrix(), *refused]))
    assert "- `run0`: 14 cases: 10 ok, 4 unsupported." in text
    ways = "`usp` zigzag_document, `ring_p2p` zigzag_document"
    assert line(text, "unsupported", "`fa3`") == ["`full`, `causal`", ways, "4", "0 documents"]
    assert line(text, "unavailable", "absent") == ["`full` 32 K", "No module named 'absent'"]
    whole = part("not_measured", write(tmp_path / "y", matrix(), peers=PEERS[:3]))
    assert whole.endswith("No case of these was refused or failed.")


def test_what_the_suite_has_and_no_record(tmp_path):
    text = part("gaps", write(tmp_path / "x", matrix()))
    recorded, lacking = line(text, "4", "`fa3`", "32 K", "forward")
    assert re.fullmatch(r"4 of \d+", recorded), "all but ulysses, which has but one placement, and so no zigzag"
    assert "`full`" in lacking


def test_the_environment_links_to_the_records(tmp_path):
    text = part("environment", write(tmp_path / "x", matrix()))
    assert re.search(r"^- \[`run0`\]\(.*/x/run0/records\.jsonl\), distributed 1 .*name Some GPU.*torch 2\.11\.0", text)


def test_peers_may_be_missing(tmp_path):
    folder = write(tmp_path / "x", matrix())
    (folder / "peers.json").unlink()
    assert part("peers", folder) == "*Not measured yet.*"
    assert part("not_measured", folder).endswith("No case of these was refused or failed.")


def test_missing_records_are_an_error_that_says_how_to_make_them(tmp_path):
    folder = write(tmp_path / "x", matrix())
    (file,) = folder.rglob("records.jsonl")
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"needs records\.jsonl in .*make it with: longca "):
        part("throughput", folder)
    assert docs_module("parallel_page").fill("a page without markers", folder) == "a page without markers"


def test_the_page_asks_for_every_part_and_nothing_else():
    asked = re.findall(r"^<!-- measured: (\w+) -->$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(asked) == sorted(docs_module("parallel_page").MEASURED)


def test_commands_that_make_the_records_are_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    made = [c.format(folder="results/h200/distributed") for c in docs_module("parallel_page")._MADE_BY.values()]
    assert [command for command in made if command not in text] == []


def test_what_is_beside_a_kernel(tmp_path):
    def row(share: float, **way: Any) -> dict[str, Any]:
        about = {"seqlen": 2**15, "mask": "full", "direction": "forward", "milliseconds": 1.0, "of_alone": share}
        return about | ({"chunks": None, "beside": None} | way if way else {})

    def ring(share: float, beside: bool) -> dict[str, Any]:
        return row(share, strategy="ring_p2p", beside=beside)

    folder = write(tmp_path, matrix())
    assert part("overlap", folder) == "*Not measured yet.*"
    ulysses = [row(share, strategy="ulysses", chunks=chunks) for share, chunks in ((0.5, 2), (0.75, 1))]
    for name, ranks in (("overlap", 2), ("overlap-more", 4)):
        rows = [row(1.0), *ulysses, ring(0.625, beside=False), ring(0.5 + ranks / 32, beside=True)]
        (folder / f"{name}.json").write_text(json.dumps({"ranks": ranks, "rows": rows}), encoding="utf-8")
    docs_module("parallel_page").load.cache_clear()
    most, least = part("overlap", folder).split("On 2 GPUs")
    assert "On 4 GPUs" in most, "the record of more ranks first"
    assert lines(most, "`ulysses`") == [["1 chunk", "**0.75**"], ["2 chunks", "0.50"]]
    assert lines(most, "`ring_p2p`") == [["transfers beside a step", "**0.62**"], ["transfers before it", "**0.62**"]]
    assert lines(least, "`ring_p2p`", "transfers beside a step") == [["0.56"]]


def test_what_has_no_ring_is_no_strategy_of_its_own(tmp_path):
    two = {"world_size": 2, "seqlen": 2**14}
    runs = [
        record("ulysses", 1.5, mesh="ulysses=2", **two),
        record("usp", 1.25, mesh="ring=1,ulysses=2", **two),
        record("ring_p2p", 2.0, mesh="ring=2", **two),
    ]
    folder = write(tmp_path, runs)
    assert [row[3] for row in lines(part("best", folder), "`full`")] == ["`ulysses`"]
    assert lines(part("expectations", folder), "`usp` is quicker than `ulysses`") == [["not measured"]]
    assert lines(part("throughput", folder), "`usp` ring 1, ulysses 2"), "it was measured all the same"


def test_where_time_goes_has_every_number_of_ranks(tmp_path):
    two = record("ring_p2p", 2.0, mesh="ring=2", world_size=2, seqlen=2**16)
    shorter = record("ring_p2p", 2.0, seqlen=2**14)
    text = part("time", write(tmp_path, [*matrix(), two, shorter]))
    assert re.findall(r"^### .* (\d+ K) tokens on (\d) ranks", text, re.MULTILINE) == [
        ("64 K", "2"), ("32 K", "4"), ("32 K", "4"),
    ]  # fmt: skip
