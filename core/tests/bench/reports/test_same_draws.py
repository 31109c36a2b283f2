"""One is named the fastest only among those that one run measured on the same draws, on a quiet machine.

The oracle works on the plain list of records: it knows nothing of tables, groups or data frames.
"""

import json
import random
import re
from collections import defaultdict
from statistics import median

import pytest

from longca_bench.reports.formats import write_reports
from longca_bench.reports.html.page import write_html
from longca_bench.reports.rows import Rows
from longca_bench.reports.table import Mark
from longca_bench.reports.views import tables
from longca_bench.reports.winners import winners

from .runs import record, rows_of, write_run

QUIET, BUSY = {"busy": False, "why": ""}, {"busy": True, "why": "3.0 cores of other processes"}


def drawn(seed):
    """Some runs of random kernels on random draws of two masks, with times that a busy machine disturbed."""
    rng = random.Random(seed)
    return [
        [
            record(kernel, time=rng.uniform(1, 9) * 1e-3, pattern=mask, mask_digest=f"{mask}{draw}", seed=draw,
                   case=f"{kernel}{mask}{draw}", machine=BUSY if rng.random() < 0.1 else QUIET)
            for mask in ("full", "causal") for draw in range(rng.randint(1, 3)) for kernel in "abc"
            if rng.random() < 0.8
        ]
        for _ in range(rng.randint(1, 3))
    ]  # fmt: skip


def best(cells):
    """The kernel with the least figure. Each has a figure by run and draw, and whether the machine was busy."""

    def over(kernel, draws):
        return median(cells[kernel][draw][0] for draw in draws)

    first = min(cells, key=lambda kernel: over(kernel, cells[kernel]), default=None)
    for other in cells.keys() - {first}:
        both = [draw for draw in cells[first] if draw in cells[other]]
        fair = [draw for draw in both if not any(cells[each].get(draw, (0, ""))[1] for each in cells)]
        if not fair or over(first, fair) > over(other, fair):
            return None
    return first if len(cells) > 1 else None


def expected(runs, mask, *fixed):
    """The best kernel of a mask: of all draws, or of one run and draw."""
    cells = defaultdict(dict)
    for number, records in enumerate(runs):
        for each in records:
            if each.pattern == mask and (number, each.seed)[: len(fixed)] == fixed:
                cells[each.kernel][number, each.seed] = -each.tflops, each.machine["busy"]
    return best(cells)


def marked(table):
    """The heads of the best cells of each line, by the texts before them."""
    heads = [head.text for head in table.heads]
    for row in table.rows:
        texts = dict(zip(heads, (cell.text for cell in row), strict=True))
        yield texts, [head for head, cell in zip(heads, row, strict=True) if cell.mark is Mark.BEST]


@pytest.mark.parametrize("seed", range(12))
def test_the_fastest_is_that_of_an_oracle(seed):
    runs = drawn(seed)
    rows = rows_of(*runs)
    for table in tables("throughput", rows):
        for texts, found in marked(table):
            assert found == [each for each in [expected(runs, texts["mask"])] if each]
    for table in tables("results", rows):
        for texts, found in marked(table):
            run, draw = int(texts.get("run", "run0").removeprefix("run")), int(texts.get("seed", 0))
            winner = expected(runs, texts["mask"], run, draw)
            assert found == [each for each in [winner] if each]
            assert texts.get("fastest", "").split(" = ")[0] == (winner or "")
            for each in runs[run]:
                if (each.pattern, each.seed) == (texts["mask"], draw):
                    assert ("~" in texts[each.kernel]) == each.machine["busy"]


def test_a_kernel_alone_in_its_run_wins_nothing(tmp_path):
    both = [record("fa3", time=5e-3), record("fa4", time=4e-3)]
    rows = rows_of([record("fa3", time=1e-3)], both)
    (table,) = tables("results", rows)
    assert [(row[2].text, row[-1].text) for row in table.rows] == [("run0", ""), ("run1", "fa4")]
    assert [(each.fastest, each.cases) for each in winners(rows)] == [(("fa4",), 1)]
    page = write_html(rows, tmp_path / "page.html").read_text("utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["numbers"]
    assert (data["best"], data["ranked"]) == ([0, 0, 1], [0, 1, 1])
    (apart,) = winners(rows_of(both[:1], both[1:]))
    assert str(apart).endswith("no kernel is named the fastest, because no run measured all of them on the same draws")


def test_a_time_of_a_busy_machine_is_marked_everywhere_and_wins_nothing(tmp_path):
    records = [
        record("fa3", machine=BUSY, plan_seconds=1.0),
        record("fa4", time=4e-3, machine=QUIET),
        record("old", time=9e-3),
    ]
    rows = Rows.read(write_run(tmp_path / "run", records))
    assert [str(each) for each in winners(rows)] == [
        "causal: no kernel is named the fastest, because the machine was busy"
    ]
    (sentence,) = rows.disturbed()
    assert "busy in 1 case of 3, such as fa3 causal 1024 forward: 3.0 cores of other processes" in sentence
    for view, head in (("results", "fa3"), ("throughput", "fa3"), ("costs", "1 K")):
        (table,) = tables(view, rows)
        assert len([cell for row in table.rows for cell in row if "~" in cell.text]) == 1
        assert table.notes[-1].startswith("~ marks a time of a busy machine")
        assert list(filter(None, table.frame()["busy"])) == [head]
    written = write_reports(rows, tmp_path / "out", ["csv", "markdown"])
    assert "~" in written[1].read_text()
    lines = [line.rpartition(",")[2] for line in written[0].read_text().splitlines()]
    assert lines == ["busy", "3.0 cores of other processes", "", ""]
    assert list(rows.where(busy="")["kernel"]) == ["fa4", "old"]


def ranked(strategy, time, mask="full", **fields):
    """A strategy in both directions, the backward in twice the time."""
    about = {"strategy": strategy, "placement": "auto", "placed": "zigzag", "world_size": 2, "mesh": "ring=2"}
    return [
        record("fa3", time=by * time, pattern=mask, mask_digest=mask, direction=way, case=f"{strategy}{mask}{way}",
               alone_seconds=by * 1e-3, communication={}, **about, **fields)
        for by, way in ((1, "forward"), (2, "backward"))
    ]  # fmt: skip


def test_a_strategy_wins_among_those_of_its_run():
    alone, together = ranked("usp", 1e-3), [*ranked("usp", 4e-3), *ranked("ring_p2p", 2e-3)]
    disturbed = [*ranked("usp", 4e-3, "causal", machine=BUSY), *ranked("ring_p2p", 2e-3, "causal", machine=QUIET)]
    rows = rows_of(alone, [*together, *disturbed])
    shown = [table for table in tables("strategies", rows) if table.title.startswith("full forward")]
    strategies = [(texts["strategy"], texts["run"], found) for table in shown for texts, found in marked(table)]
    assert strategies == [("usp", "run0", []), ("usp", "run1", []), ("ring_p2p", "run1", ["ms"])]
    for table in tables("strategy-shares", rows):
        assert [found for _, found in marked(table)] == [[], []], "a median over both runs makes usp the faster one"
    (table,) = tables("fastest-strategies", rows_of([*together, *disturbed]))
    (line,) = [[cell.text for cell in row] for row in table.rows]
    assert line == ["full", "fa3", "2", "1 K", "ring_p2p", "zigzag", "0.50", "usp", "zigzag", "2.00×"]
    assert tables("fastest-strategies", rows_of(alone)) == []


def test_a_kernel_alone_in_its_run_is_no_choice_in_training():
    both = [
        record(kernel, time=time, direction=way)
        for kernel, time in (("a", 3e-3), ("b", 2e-3))
        for way in ("forward", "backward")
    ]
    lone = [record("a", time=1e-3, direction=way) for way in ("forward", "backward")]
    (table,) = tables("best-pair", rows_of(lone, both))
    assert [cell.text for cell in table.rows[0][:3]] == ["causal", "1", "b"]
    busy = [each.model_copy(update={"machine": BUSY}) for each in both]
    assert tables("best-pair", rows_of(busy)) == []
