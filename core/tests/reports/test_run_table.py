"""The terminal's tables: kernels that take nothing of a run have a remark, and no column."""

from io import StringIO

from rich.console import Console

from longca.reports.run_table import print_run

from .runs import record


def printed(*records):
    out = StringIO()
    print_run(Console(file=out, width=100), records)
    return out.getvalue()


def test_a_kernel_that_takes_nothing_has_no_column():
    text = printed(record("near"), record("far", status="unsupported"), record("further", status="unsupported"))
    table, _, remarks = text.partition("–")
    assert "near" in table
    assert "far" not in table
    assert "far, further take nothing of this run" in remarks
    assert "3 cases: 1 ok, 2 unsupported" in remarks


def test_a_kernel_that_takes_some_of_it_has_one():
    text = printed(record("near"), record("near", pattern="full", status="unsupported"))
    assert "near does not take full" in text
    assert "nothing of this run" not in text
