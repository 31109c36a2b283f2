from io import StringIO

import pytest
from rich import box
from rich.console import Console
from rich.table import Table

from longca_bench.reports.whole_table import print_whole

NAME, NUMBER = "uniform_block_sparse 128, 50 %", "1234567890"


def printed(width):
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    table.add_column("mask")
    for head in ("tokens", "ms"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_row("[green]✓[/]", NAME, "32 K", NUMBER)
    out = StringIO()
    print_whole(Console(file=out, width=width), table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_table_that_fits_is_on_one_line_a_row():
    (row,) = (line for line in printed(80) if NUMBER in line)
    assert row.split() == ["✓", *NAME.split(), "32", "K", NUMBER]


def test_words_wrap_before_lines_run_on():
    lines = printed(50)
    assert max(map(len, lines)) <= 50
    (row,) = (line for line in lines if NUMBER in line)
    assert "uniform_block_sparse" in row
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("width", [1, 10, 30])
def test_nothing_is_cut_where_lines_run_on(width):
    lines = printed(width)
    (row,) = (line for line in lines if NUMBER in line)
    assert row.split() == ["✓", "uniform_block_sparse", "32", "K", NUMBER]
    assert any("128, 50 %" in line for line in lines)
