"""What docs/context-parallel-results.md says of missed aims is what records, traces and streams say."""

from __future__ import annotations

import json

import numpy as np

from longca_bench.measuring.records import read_records
from longca_bench.reports.rows import Rows
from longca_bench.reports.views import tables
from longca_bench.reports.views_peers import peers

from .docs_pages import DOCS, said, table_rows
from .imports import ROOT

RESULTS = (DOCS / "context-parallel-results.md").read_text("utf-8")


def test_how_many_cells_of_peers_miss_their_aim():
    assert "<!-- view: peers results/h200/distributed/peers.json -->" in RESULTS
    found: dict[str, list[float]] = {"16": [], "64": []}
    for table in peers(Rows.read(ROOT / "results" / "h200" / "distributed" / "peers.json")):
        tokens = table.title.partition(" K tokens")[0].rpartition(" ")[2]
        for row in table.rows:
            found[tokens] += [row[4].value, row[7].value] if row[0].text.startswith("– ") else []
    pattern = r"These aims are missed in (\d+) and in (\d+) of (\d+) cells"
    missed = sum(each < 1.05 for each in found["16"]), sum(each < 1.02 for each in found["64"])
    assert said(pattern, RESULTS) == (*missed, len(found["16"]))
    assert len(found["16"]) == len(found["64"])


def test_cells_without_the_first_call_of_a_turn():
    """The first call waits for the host. Three turns have as many calls each."""
    record = json.loads((ROOT / "results/h200/distributed/peers.json").read_text("utf-8"))
    later: dict[tuple[object, ...], float] = {}
    first: list[float] = []
    for row in record["rows"]:
        if row["status"] != "ok":
            continue
        turns = np.array(row["samples"]).reshape(row["turns"], -1)
        about = row["seqlen"], row["mask"], row["direction"]
        later[*about, row["name"]] = float(np.median(turns[:, 1:]))
        if about[::2] == (16384, "backward") and row["kind"] in ("ours", "peer"):
            first.append(float(np.median(turns[:, 0])) - later[*about, row["name"]])
    missed = {16384: 0, 65536: 0}
    for row in record["rows"]:
        if row["status"] == "ok" and row["kind"] == "peer":
            about = row["seqlen"], row["mask"], row["direction"]
            over = later[*about, row["name"]] / later[*about, f"{row['peer_of']} by copy_engine"]
            missed[row["seqlen"]] += over < {16384: 1.05, 65536: 1.02}[row["seqlen"]]
    pattern = r"takes ([\d.]+) ms more than the others in the median backward .* missed in (\d+) and in (\d+) cells"
    assert said(pattern, RESULTS) == (round(float(np.median(first)), 1), *missed.values())


def test_backwards_without_the_copies_of_a_ring_of_one():
    found = []
    for name in ("peers.json", "tried/peers-chunks.json"):
        rows = json.loads((ROOT / "results/h200/distributed" / name).read_text("utf-8"))["rows"]
        times = {
            (row["seqlen"], row["mask"], row["name"].partition(" ")[0]): row["milliseconds"]
            for row in rows
            if row["kind"] == "ours" and row["direction"] == "backward"
        }
        over = {about: seconds / times[*about[:2], "ulysses"] for about, seconds in times.items()}
        found.append(over)
    since, before = found
    ends = []
    for strategy in ("usp", "loongtrain"):
        less = [1 - ratio / before[about] for about, ratio in since.items() if about[2] == strategy]
        ends += [round(100 * min(less)), round(100 * max(less))]
    pattern = r"backwards of `usp` take (\d+) to (\d+) % less time since, and those of `loongtrain` (\d+) to (\d+) %"
    assert said(pattern, RESULTS) == tuple(ends)


def single_calls() -> dict[tuple[object, ...], list[tuple[float, float]]]:
    """The shares of one GPU alone of calls by the copy engine on H200s: the kernel's calls alone, and the whole."""
    found: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for run in ("links16k", "tried/links16k-today", "links_again", "links64k", "links_chunks"):
        for record in read_records(ROOT / "results" / "h200" / "distributed" / run):
            if record.median and (record.moved_by or "").endswith("=copy_engine"):
                about = f"{record.seqlen // 1024} K", record.pattern, str(record.direction), record.strategy
                shares = record.alone_seconds / max(record.rank_compute_seconds), record.alone_seconds / record.median
                found.setdefault(about, []).append(shares)
    return found


def test_what_missed_aims_of_peers_need():
    """The table has all missed cells that the kernel alone does not rule out in the same record."""
    frame = Rows.read(ROOT / "results" / "h200" / "distributed" / "peers.json").frame(
        ("seqlen", "mask", "direction", "name", "kind", "peer_of", "status", "milliseconds")
    )
    cells = {
        (f"{row['seqlen'] // 1024} K", row["mask"], row["direction"], row["name"]): row
        for row in frame[frame["status"] == "ok"].to_dict("records")
    }
    needed: dict[tuple[str, ...], list[str]] = {}
    ours: dict[tuple[str, ...], str] = {}
    for (*about, _), row in cells.items():
        if row["kind"] != "peer":
            continue
        mine, alone, abreast = (
            cells[*about, name]["milliseconds"] for name in (f"{row['peer_of']} by copy_engine", "alone", "abreast")
        )
        most = row["milliseconds"] / (1.05 if about[0] == "16 K" else 1.02)
        if mine > most >= max(alone, abreast):
            key = *about, row["peer_of"]
            needed.setdefault(key, []).append(f"{alone / most:.3f}")
            ours[key] = f"{alone / mine:.3f}"
    table = table_rows(RESULTS, "tokens", "mask", "direction", "strategy", "peers")
    assert {tuple(row[:4]): sorted(row[5].split(", ")) for row in table} == {k: sorted(v) for k, v in needed.items()}
    assert {tuple(row[:4]): row[6] for row in table} == ours
    assert [row[-1] for row in table].count("all runs reach it") == 4, "the page has their number"
    assert sum(map(len, needed.values())) == said(r"has the other (\d+) missed cells", RESULTS)[0]
    single = single_calls()
    for *about, _, need, _, alone, whole, cause in table:
        measured = single.get(tuple(about), [])
        ends = ["–", "–"]
        if measured:
            ends = ["–".join(dict.fromkeys((f"{min(x):.3f}", f"{max(x):.3f}"))) for x in zip(*measured, strict=True)]
        assert [alone, whole] == ends, about
        least, most = min(map(float, need.split(", "))), max(map(float, need.split(", ")))
        reached = sum(share >= most for _, share in measured)
        if cause == "kernel":
            assert all(max(calls, share) < least for calls, share in measured), about
        elif cause == "all runs reach it":
            assert reached == len(measured), about
            assert min(share for _, share in measured) > max(calls for calls, _ in measured), "calls alone are no limit"
        elif measured:
            assert cause == f"{reached} of {len(measured)} runs reach{'es' * (reached == 1)} it", about
            alone_misses = all(calls < least for calls, share in measured if share < most)
            assert alone_misses == (about[-1] != "ring_all_gather"), about
        else:
            assert cause == "no run", about


def test_single_steps_of_streams():
    runs = {
        "`ulysses`, H200s": "h200/distributed/dynamic64k",
        "`ring_p2p`, H100s": "h100/distributed/dynamic64k",
        **{
            f"`{name}`, H100s": f"h100/distributed/dynamic64k_{name}"
            for name in ("ring_all_gather", "usp", "loongtrain")
        },
    }
    table = table_rows(RESULTS, "strategy", "first step", "planning inside it")
    assert len(table) == len(runs)
    for (name, *shown), run in zip(table, runs.values(), strict=True):
        (record,) = read_records(ROOT / "results" / run)
        fixed, prefetched, fresh = map(np.array, (record.stream.fixed, record.stream.prefetched, record.stream.fresh))
        over = prefetched / fixed
        figures = [f"{over[0]:.2f}", f"{fresh[0] / fixed[0]:.2f}", f"{np.median(over):.3f}"]
        figures += [f"{prefetched[1:].sum() / fixed[1:].sum():.3f}", f"{(over > 1.02).sum()}", f"{(over < 0.98).sum()}"]
        assert shown == figures, name


def test_kernels_of_attention_in_traced_backwards():
    """The sentences of traces have the times of the two kernels of attention, by far the longest spans."""
    found = []
    for mask in ("causal", "full"):
        trace = json.loads((ROOT / f"results/h200/distributed/timeline-64k-{mask}.json").read_text("utf-8"))
        for rank in (0, 1) if mask == "causal" else (0,):
            spans = [
                row["end"] - row["start"]
                for row in trace["rows"]
                if (row["strategy"], row["direction"]) == ("ulysses", "backward")
                if row["rank"] == rank and row["kind"] == "kernel"
            ]
            found += [round(length, 1) for length in spans if length > 10]
    pattern = (
        r"`ulysses` take ([\d.]+) and ([\d.]+) ms on one rank, and ([\d.]+) and ([\d.]+) ms on the other\. .* "
        r"takes 286.6 ms, and its kernels ([\d.]+) and ([\d.]+) ms\."
    )
    assert said(pattern, RESULTS) == tuple(found)


def test_both_directions_of_the_run_with_chunks():
    times: dict[tuple[object, ...], list[tuple[float, float, float]]] = {}
    for record in read_records(ROOT / "results/h200/distributed/links_chunks"):
        about = f"{record.seqlen // 1024} K", record.pattern, record.strategy
        times.setdefault(about, []).append((record.alone_seconds, record.median, record.abreast_seconds))
    sums = {about: np.sum(each, axis=0) for about, each in times.items() if len(each) == 2}
    shares = {about: f"{alone / whole:.3f}" for about, (alone, whole, _) in sums.items()}
    names = "usp", "ulysses", "ring_all_gather", "ring_p2p"
    for mask, *shown in table_rows(RESULTS, "both directions, 16 K tokens"):
        assert shown == [shares["16 K", mask, name] for name in names]
    found = said(r"together, `ring_p2p` has ([\d.]+), `ulysses` ([\d.]+) and `usp` ([\d.]+)\. So both aims", RESULTS)
    assert found == tuple(float(shares["64 K", "causal", name]) for name in ("ring_p2p", "ulysses", "usp"))
    (full, _, abreast), (causal, _, causal_abreast) = sums["16 K", "full", "usp"], sums["64 K", "causal", "usp"]
    assert said(r"`links_chunks` by ([\d.]+)\.", RESULTS) == (round(0.99 - full / abreast, 4),)
    assert said(r"In `links_chunks` it has ([\d.]+), and", RESULTS) == (round(causal / causal_abreast, 3),)


def test_bounds_of_the_full_mask_that_are_no_limits():
    shown = tables("bounds", Rows.read(ROOT / "results/h200/distributed/links_again"))[0].rows
    rings = [row for row in shown if (row[1].text, row[2].text) == ("full", "ring_p2p by copy_engine")]
    whole, abreast = (round(cell.value, 3) for cell in rings[-1][3:5])
    assert said(r"`ring_p2p` has ([\d.]+), and the kernel abreast has ([\d.]+)\.", RESULTS) == (whole, abreast)
