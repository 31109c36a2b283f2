"""Views of several ranks on small records that are made by hand."""

from __future__ import annotations

from .strategy_records import line, lines, matrix, part, record, write


def test_shares_are_of_each_gpu_beside_one_alone_with_the_best_in_bold(tmp_path):
    text = part("strategy-shares", write(tmp_path / "x", matrix()))
    assert "### fa3, 32 K tokens, 4 ranks, 64:8 heads of 128" in text
    assert line(text, "strategy", "placement") == ["full forward", "full backward"]
    assert line(text, "`ulysses`", "`zigzag`") == ["**80.0 / 0.80**", "**80.0 / 0.80**"]
    assert line(text, "`usp 2×2`", "`zigzag`") == ["40.0 / 0.40", "40.0 / 0.40"]


def test_a_placement_is_one_line_whether_it_was_asked_for_or_taken_by_auto(tmp_path):
    taken = record("ring_p2p", 1.0, placement="auto", placed="zigzag")
    other = record("ring_p2p", 4.0, placement="balanced", placed="balanced")
    text = part("strategy-shares", write(tmp_path / "x", [record("ring_p2p", 2.0), taken, other]))
    assert line(text, "`ring_p2p`", "`zigzag`")[0] == "**75.0 / 0.75**", "the median of 50 and 100"
    assert line(text, "`ring_p2p`", "`balanced`")[0] == "25.0 / 0.25"


def test_transports_are_beside_each_other_and_a_forced_one_is_a_way_of_its_own(tmp_path):
    runs = [
        record("ring_p2p", 2.0, moved_by="ring=collectives", transport="collectives"),
        record("ring_p2p", 1.25, moved_by="ring=copy_engine"),
        record("usp", 2.5, moved_by="ring=collectives,ulysses=copy_engine"),
        record("ulysses", 1.0),
    ]
    folder = write(tmp_path / "x", runs)
    found = part("transports", folder)
    assert "### fa3 forward, 32 K tokens, 4 ranks, 64:8 heads of 128" in found
    ways = ["`collectives`", "`copy_engine`", "`ring=collectives,ulysses=copy_engine`"]
    head = line(found, "mask", "strategy", "mesh", "placement")
    assert [name.strip("`") for name in head] == [way.strip("`") for way in ways]
    assert line(found, "`full`", "`ring_p2p`", "`ring=4`", "`zigzag`")[:2] == [
        "2000 / 0.50 / 25%",
        "**1250 / 0.80 / 25%**",
    ]
    assert "ulysses`" not in found.replace("ulysses=copy_engine`", ""), "earlier records do not say what moved them"
    shares = part("strategy-shares", folder)
    assert line(shares, "`ring_p2p by collectives`", "`zigzag`") == ["50.0 / 0.50"]
    assert line(shares, "`ring_p2p`", "`zigzag`") == ["80.0 / 0.80"]


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


def test_a_mesh_without_a_ring_is_no_strategy_of_its_own(tmp_path):
    two = {"world_size": 2, "seqlen": 2**14}
    runs = [
        record("ulysses", 1.5, mesh="ulysses=2", **two),
        record("usp", 1.25, mesh="ring=1,ulysses=2", **two),
        record("ring_p2p", 2.0, mesh="ring=2", **two),
    ]
    folder = write(tmp_path, runs)
    assert [row[3] for row in lines(part("fastest-strategies", folder), "`full`")] == ["`ulysses`"]
    assert lines(part("strategy-shares", folder), "`usp 1×2`"), "it was measured all the same"


def test_what_is_hidden_has_its_interval_beside_it(tmp_path):
    known = record("ring_p2p", 1.5, hidden_interval=(0.125, 0.5))
    unknown = record("usp", 1.5, hidden=None, hidden_interval=(0.0, 1.0))
    text = part("strategy-time", write(tmp_path / "x", [known, unknown]))
    (head,) = {tuple(each) for each in lines(text, "mask", "strategy")}
    place = head.index("hidden")
    assert head[place : place + 3] == ("hidden", "at least", "at most")
    shown = {name: line(text, "`full`", f"`{name}`")[place : place + 3] for name in ("ring_p2p", "usp 2×2")}
    assert shown == {"ring_p2p": ["25%", "12%", "50%"], "usp 2×2": ["", "0%", "100%"]}


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
    assert shown == {"ring_p2p": ["", "", ""], "usp 2×2": ["100%", "50%", "100%"]}


def test_memory_is_the_highest_peak(tmp_path):
    higher = record("ring_p2p", 2.0, peak_bytes=2 * 2**30, pattern="causal")
    text = part("strategy-memory", write(tmp_path / "x", [*matrix(), higher]))
    assert line(text, "`ring_p2p`") == ["2.00", "1.00"]
    assert part("strategy-memory", write(tmp_path / "y", [record("ring_p2p", 2.0, peak_bytes=None)])) == ""
