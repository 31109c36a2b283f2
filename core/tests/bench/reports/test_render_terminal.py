"""Tables in terminals: the steps in which a table is narrowed, and that nothing runs over the edge."""

from io import StringIO

import pytest
from rich.console import Console

from longca_bench.reports.rows import Rows
from longca_bench.reports.table import Cell, Head, Mark, Table, table
from longca_bench.reports.terminal import print_tables
from longca_bench.reports.views import tables

from .runs import record

KERNELS = ("naive", "sdpa", "fa2", "fa3", "fa4", "flex", "cudnn")
LONG = "uniform_block_sparse 128, 50 %"


def printed(found, width, **options):
    out = StringIO()
    print_tables(Console(file=out, width=width, **options), found)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def results():
    return tables("results", Rows.of(record(name, time=(place + 1) * 1e-3) for place, name in enumerate(KERNELS)))


def test_a_table_that_fits_has_every_column():
    title, heads, _, row, *_ = printed(results(), 160)
    assert title == "forward: ms and GFLOP/s"
    assert heads.split() == ["mask", "tokens", "dense", "tiles", *KERNELS, "fastest"]
    assert "1.00 / 105*" in row
    assert row.endswith("naive")


def test_columns_are_left_out_first_and_named():
    lines = printed(results(), 118)
    assert "dense" not in lines[1]
    assert lines[1].endswith("fastest")
    assert "Left out in so narrow a terminal: dense, tiles." in lines


def test_then_each_row_is_a_list():
    title, name, *lines = printed(results(), 48)
    assert (title, name) == ("forward: ms and GFLOP/s", "causal")
    assert [line.split(":")[0].strip() for line in lines[: len(KERNELS) + 4]] == [
        "tokens",
        "dense",
        "tiles",
        *KERNELS,
        "fastest",
    ]


@pytest.mark.parametrize("width", [12, 20, 40, 63, 64, 80])
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_lost(width):
    lines = printed(results(), width)
    assert max(map(len, lines)) <= width
    joined = "".join("".join(lines).split())
    assert all(f"{place}.00" in joined for place in range(1, 8))


def test_sentences_wrap_and_share_the_room():
    heads = (Head("kernel", left=True), Head("why", left=True, wrap=True), Head("do", left=True, wrap=True))
    lines = printed([table(heads, [["fa3", "a reason of many words " * 5, "a remedy " * 9]])], 60)
    assert max(map(len, lines)) <= 60
    assert " ".join(" ".join(lines).split()).count("remedy") == 9


def test_text_of_others_is_shown_and_not_obeyed():
    hostile = "[red]\x1b[31m\u202ename\n# x"
    lines = printed([Table((Head(hostile, left=True),), ((Cell(hostile),),), hostile, (hostile,))], 80)
    assert "\x1b" not in "".join(lines)
    assert all("[red]\\x1b[31m\\u202ename" in line for line in (lines[0], lines[1], lines[3]))


def test_the_best_has_a_colour_or_a_star():
    (made,) = results()
    assert made.rows[0][4].mark is Mark.BEST
    assert "1.00 / 105*" in "".join(printed([made], 160))
    coloured = "".join(printed([made], 160, force_terminal=True, color_system="standard"))
    assert "105*" not in coloured
    assert "\x1b[1;32m" in coloured
