"""The terminal's tables: kernels that take nothing of a run have a remark, and no column."""

from io import StringIO

from rich.console import Console

from longca_bench.reports.run_table import print_run

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


def sparse(block, kept, **fields):
    factors = {"block": block, "kept": kept}
    return record(pattern="uniform_block_sparse", factors=factors, mask_digest=f"{block}-{kept}", **fields)


def test_rows_are_told_apart_by_their_factors():
    lines = printed(sparse(64, 0.2), sparse(64, 0.5), sparse(128, 0.5), record()).splitlines()
    names = [line[: line.index("1 K")].strip() for line in lines if "1 K" in line]
    assert names == [
        "uniform_block_sparse 64, 20 %", "uniform_block_sparse 64, 50 %", "uniform_block_sparse 128, 50 %", "causal",
    ]  # fmt: skip


def test_shapes_have_columns_where_they_vary():
    alike = printed(record(), record("sdpa"))
    assert "heads" not in alike
    lines = printed(record(), record(heads_kv=4), record(seed=1), record(seed=1, heads_kv=4)).splitlines()
    assert [line.split()[:5] for line in lines if "1 K" in line] == [
        ["causal", "1", "K", heads, seed] for seed in "01" for heads in ("4:2", "4:4")
    ]


def test_long_names_leave_room_for_fewer_kernels():
    some = [sparse(128, 0.5, kernel=name, seed=seed) for seed in (0, 1) for name in ("one", "two", "three")]
    text = printed(*some)
    assert text.count("forward:") == 2
    assert max(map(len, text.splitlines())) <= 100


def test_a_kernel_that_refuses_some_shapes_of_a_mask_says_how_many():
    text = printed(sparse(64, 0.5), sparse(128, 0.5, status="unsupported"), record(status="unsupported"))
    assert "naive does not take uniform_block_sparse (1 of 2 cases), causal; " in text
    assert "--why naive uniform_block_sparse says why" in " ".join(text.split())


def test_a_kernel_that_takes_some_of_it_has_one():
    text = printed(record("near"), record("near", pattern="full", status="unsupported"))
    assert "near does not take full" in text
    assert "nothing of this run" not in text
