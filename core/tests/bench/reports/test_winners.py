"""The winner for each mask: ties are called ties, and kernels with fewer cases are named."""

from longca_bench.reports.winners import winners

from .runs import record, rows_of


def won(records):
    return winners(rows_of(records))


def samples(middle, spread=0.01):
    return {"samples": tuple(middle * (1 + spread * step) for step in (-2, -1, 0, 1, 2)), "median": middle}


def made(kernel, middle, spread=0.01, **fields):
    return record(kernel, **fields).model_copy(update=samples(middle, spread))


def both(kernel, forward, backward, **fields):
    return [
        made(kernel, forward, direction="forward", **fields),
        made(kernel, backward, direction="backward", **fields),
    ]


def test_the_fastest_over_all_cases_of_a_mask():
    (winner,) = won([*both("a", 1.0, 2.0), *both("b", 2.0, 4.0), *both("c", 8.0, 8.0)])
    assert (winner.fastest, winner.second, winner.cases, winner.others) == (("a",), "b", 2, {})
    assert 1.9 < winner.ratio.low < 2.0 < winner.ratio.high < 2.1
    assert str(winner).startswith(f"{winner.mask}: a is the fastest, 2.00 times as fast as b (95 % interval 1.9")


def test_intervals_that_hold_1_are_a_tie():
    (winner,) = won([made("a", 1.0, 0.05), made("b", 1.01, 0.05), made("c", 3.0)])
    assert (winner.fastest, winner.second) == (("a", "b"), "c")
    assert "a tie of a and b, " in str(winner)


def test_a_kernel_with_fewer_cases_is_named_where_it_is_faster():
    (winner,) = won([*both("a", 1.0, 2.0), made("b", 0.5, direction="forward"), made("c", 9.0)])
    assert (winner.fastest, winner.others) == (("a",), {"b": 1})
    assert str(winner).endswith("only a was measured on all, in 2 cases; b is the fastest in 1, and lacks others")


def test_a_mask_without_a_time():
    found = won([record("a", status="wrong"), made("a", 1.0, pattern="full")])
    assert [str(winner).partition(": ")[2] for winner in found] == [
        "nothing was measured",
        "only a was measured, in 1 case",
    ]
