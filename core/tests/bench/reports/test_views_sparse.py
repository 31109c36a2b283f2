"""Views of block-sparse masks, on small records that are made by hand."""

from longca_bench.reports.markdown import markdown_of
from longca_bench.reports.views import tables

from .runs import cells, record, rows_of


def curve(kernel, *speeds, block=64):
    """A kernel's records by share kept, beside dense attention that takes 1 s at a speed of 1000."""
    points = [
        record(kernel, 32768, time=1000 * kept / speed, pattern="uniform_block_sparse", density=kept,
               mask_digest=f"{block}-{kept}", factors={"block": block, "kept": kept})
        for kept, speed in speeds
    ]  # fmt: skip
    return [record("fa3", 32768, time=1.0, pattern="full"), *points]


def part(*runs):
    return markdown_of(tables("crossings", rows_of(*runs)))


def test_the_share_from_which_dense_attention_is_faster():
    runs = [
        curve("bsa", (0.2, 500.0), (0.6, 500.0), (1.0, 500.0)),  # 0.4, 1.2 and 2 s, where dense takes 1
        curve("fa4", (0.2, 900.0), (0.7, 900.0)),
        curve("flex", (0.2, 100.0), (0.7, 100.0)),
        curve("vsa", (0.2, 3000.0), (1.0, 3000.0)),
    ]
    text = part(*runs)
    assert cells(text, "on") == ["`bsa`", "`fa4`", "`flex`", "`vsa`"]
    found = cells(text, "forward, 32 K, 4:2, blocks of 64")
    assert found == ["50%", "above 70%", "not from 20% on", "always"]


def test_each_size_of_blocks_has_a_line_and_a_kernel_without_it_nothing():
    run = [*curve("bsa", (0.2, 500.0), (0.6, 500.0)), *curve("fa4", (0.2, 400.0), (0.6, 400.0), block=128)[1:]]
    assert cells(part(run), "forward, 32 K, 4:2, blocks of 128") == ["", "40%"]
    assert part(run[1:]) == "", "no dense attention stands beside these"
