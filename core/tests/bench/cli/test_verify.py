"""`longca verify`, as it is called: kernels, pairs, and offers that have a backward alone."""

import json

import pytest

HALVES = """
from longca.kernels.base import Plan
from longca_builtin.naive import Naive
from longca.masks import Form

class Forward:
    forward = Naive.forward

    def plan(self, problem):
        return Plan(problem, Form.ROW_INTERVALS, "torch.matmul")

class Backward:
    plan, backward = Forward.plan, Naive.backward

class Wrong(Backward):
    def backward(self, *arguments, **buffers):
        dq, dk, dv = super().backward(*arguments, **buffers)
        return dq, dk, dv.mul_(1.01)
"""
PROVIDES = """
@hookimpl
def provide_kernel():
    here = {"dtypes": ("float32",), "gqa": False, "head_dims": (32,), "unequal_lengths": True}
    back = offer("row_intervals", backward="external", forward=False, **here)
    return [kernel("ahead", offer("row_intervals", **here), implementation="half_kernels:Forward"),
            kernel("back", back, implementation="half_kernels:Backward"),
            kernel("wrong", back, implementation="half_kernels:Wrong")]
"""


@pytest.fixture
def halves(fakes):
    folder = fakes.add("halves", PROVIDES)
    (folder / "half_kernels.py").write_text(HALVES, "utf-8")
    fakes.env |= {"LONGCA_PLUGINS": "halves", "OMP_NUM_THREADS": "1"}
    return fakes


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_halves_are_verified_alone_and_together(halves, jobs):
    kernels = ("--kernel", "back", "--kernel", "ahead+back")
    ran = halves.longca("verify", *kernels, "--device", "cpu", "--jobs", jobs, "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    assert list(found) == ["back", "ahead+back"]
    for (row,) in found.values():
        assert row["passed"]
        assert (row["direction"], row["form"]) == ("backward", "row_intervals")
        assert row["offer"]["forward"] is False


GPU_ALONE = """
@hookimpl
def provide_kernel():
    return kernel("far", offer("causal", cpu=False, cuda=">=8.0"), implementation="half_kernels:Forward")
"""


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_nothing_verified_is_a_failure_with_its_reason(halves, options):
    halves.add("gpus", GPU_ALONE)
    said = "error: nothing of far was verified here: far runs on CUDA devices (compute capability >=8.0); this device"
    ran = halves.longca("verify", "--kernel", "far", "--device", "cpu", *options, LONGCA_PLUGINS="halves,gpus")
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
    assert ran.stderr.startswith(said)
    beside = ("--kernel", "far", "--kernel", "back", "--device", "cpu", *options)
    ran = halves.longca("verify", *beside, LONGCA_PLUGINS="halves,gpus")
    assert (ran.returncode, ran.stderr.startswith(said)) == (1, True), (
        "a kernel that was named is not skipped in silence"
    )


@pytest.mark.parametrize("kernel", ["wrong", "ahead+wrong"])
def test_a_wrong_backward_is_found_whoever_computes_the_forward(halves, kernel):
    ran = halves.longca("verify", "--kernel", kernel, "--device", "cpu", "--json")
    assert ran.returncode == 1
    ((row,),) = json.loads(ran.stdout).values()
    assert {failure["tensor"] for failure in row["failures"]} == {"dv", "dv as a part"}


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("back+bak", "unknown backward half 'bak'. Did you mean back?"),
        ("back+back", "pairs a kernel with itself; name it once: back"),
        ("a+b+c", "is no pair; name two kernels"),
    ],
)
def test_names_that_are_refused(halves, kernel, said):
    assert said in halves.refuses("verify", "--kernel", kernel, "--device", "cpu")


def test_a_backward_alone_says_what_to_do(halves):
    narrow = ("--mask", "full", "--seqlen", "64", "--direction", "backward", "--dry-run")
    ran = halves.longca("run", "quick", "--kernel", "back", *narrow)
    assert ran.returncode == 0
    assert "Pair it with a kernel that has one: FORWARD+back" in ran.stdout
