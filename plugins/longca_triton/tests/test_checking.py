"""The checks find wrong results, and name them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from longca import masks
from longca_builtin.naive import Naive
from longca_triton.checking import (
    RESULTS,
    both_ways,
    check,
    check_buffers,
    check_far_offsets,
    check_launch,
    check_layouts,
    check_parts,
    check_strides,
    check_unseen,
    compare,
    cpu_problem,
    draw_tensors,
    run_interpreted,
)

from .toy import IN_USE, WRONG, Toy

PROBLEM = cpu_problem(masks.build("causal", seqlen=20), 2, 1)


class Contiguous(Naive):
    """Takes every q for a contiguous one."""

    def forward(self, q, k, v, plan, **buffers):
        return super().forward(q.as_strided(q.shape, torch.empty(q.shape).stride()), k, v, plan, **buffers)


def test_what_is_right():
    results = check(PROBLEM, Toy())
    assert [x.shape for x in results] == [(20, 2, 64), (2, 20), (20, 2, 64), (20, 1, 64), (20, 1, 64)]


@pytest.mark.parametrize(("kernel", "result"), [("forward", "out"), ("dkdv", "dk"), ("dq", "dq")])
def test_what_is_wrong_is_named(kernel, result):
    with pytest.raises(AssertionError, match=rf"^{result}: "):
        check(PROBLEM, Toy(replace(IN_USE, **{kernel: WRONG})))


@pytest.mark.parametrize("index", range(len(RESULTS)), ids=RESULTS)
def test_one_wrong_number_is_enough(index):
    expected = both_ways(Naive(), PROBLEM, *(x.double() for x in draw_tensors(PROBLEM)))
    results = [x.clone() for x in expected]
    compare(results, expected)
    results[index].view(-1)[7] += 0.01 * max(1.0, float(expected[index].abs().max()))
    with pytest.raises(AssertionError, match=rf"^{RESULTS[index]}: "):
        compare(results, expected)


def test_nothing_seen_is_minus_infinity_in_both():
    nothing = torch.full((2, 3), -torch.inf)
    values = [torch.zeros(3, 2, 4), nothing, *[torch.zeros(3, 2, 4)] * 3]
    compare(values, [x.double() for x in values])
    with pytest.raises(AssertionError, match=r"^lse: "):
        compare([values[0], torch.zeros(2, 3), *values[2:]], [x.double() for x in values])


def test_buffers_that_are_not_filled():
    class Forgetful(Naive):
        def forward(self, q, k, v, plan, *, out=None, lse=None):
            return super().forward(q, k, v, plan, out=out)

    check_buffers(PROBLEM, Naive())
    with pytest.raises(AssertionError, match=r"^lse: a buffer of strides"):
        check_buffers(PROBLEM, Forgetful())


def test_a_backward_of_its_own_out_and_lse_alone_is_no_part():
    class Own(Naive):
        def backward(self, dout, q, k, v, out, lse, plan, **buffers):
            return super().backward(dout, q, k, v, *self.forward(q, k, v, plan), plan, **buffers)

    check_parts(PROBLEM, Naive(), 8)
    with pytest.raises(AssertionError, match=r"^dq: "):
        check_parts(PROBLEM, Own(), 8)


def test_strides_that_are_taken_for_others():
    check_strides(PROBLEM, Naive())
    with pytest.raises(AssertionError, match=r"^out: "):
        check_strides(PROBLEM, Contiguous())


@pytest.mark.parametrize(("line", "code"), [('os.environ["TRITON_INTERPRET"] == "1"', 0), ("False, 'so it goes'", 1)])
def test_a_file_runs_in_a_process_of_its_own(tmp_path, line, code):
    path = tmp_path / "check_it.py"
    path.write_text(f"import os\n\ndef test_it():\n    assert {line}\n", encoding="utf-8")
    done = run_interpreted(path)
    assert done.returncode == code
    assert ("so it goes" in done.stdout) == bool(code)


def test_layouts_change_nothing():
    check_layouts(PROBLEM, Naive())
    with pytest.raises(AssertionError, match="not close"):
        check_layouts(PROBLEM, Contiguous())


def test_results_that_nothing_sees():
    visible = torch.zeros(1, 20, 20, dtype=torch.bool)
    visible[:, 1:, 1:] = True
    out, lse, dq, dk, dv = (torch.ones(20, 2, 64), torch.ones(2, 20), *[torch.ones(20, n, 64) for n in (2, 1, 1)])
    lse[:, 0] = -torch.inf
    for x in (out, dq, dk, dv):
        x[0] = 0
    check_unseen((out, lse, dq, dk, dv), visible)
    for x in (out, lse, dq, dk, dv):
        x[(slice(None), 0) if x is lse else 0] = 7
        with pytest.raises(AssertionError):
            check_unseen((out, lse, dq, dk, dv), visible)
        x[(slice(None), 0) if x is lse else 0] = -torch.inf if x is lse else 0


def test_offsets_far_apart():
    check_far_offsets(cpu_problem(masks.build("causal", seqlen=70), 2, 1), Naive())


@pytest.mark.parametrize("kernel", ["forward", "dkdv", "dq"])
def test_a_launch_by_itself(kernel):
    check_launch(Toy, PROBLEM, kernel, IN_USE)
    with pytest.raises(AssertionError, match="not close"):
        check_launch(Toy, PROBLEM, kernel, replace(IN_USE, **{kernel: WRONG}))
