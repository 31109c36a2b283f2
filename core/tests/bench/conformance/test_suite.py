"""The suite, really run by pytest on a plugin of bad kernels: each is caught by the check that is for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from longca.errors import RequestError, UnknownNameError
from longca.manifests import Device
from longca.testing import CHECKS, conformance
from longca_bench.conformance.suite import checks_of

from ...fake_plugins import FakePlugins

BAD = Path(__file__).with_name("bad_kernels.py").read_text(encoding="utf-8")
SUITE = """
from longca.testing import conformance

test_all = conformance("longca-bad")
test_declared = conformance(
    kernels=["zeros", "right"],
    expected_failures={("zeros", "right"): "it returns zeros", ("right", "*-forward-right"): "it is not wrong at all"},
)
test_here = conformance(kernels=[{HERE}], isolated=False)
"""
#: Kernels that are held to the contract without a worker too.
HERE = ("right", "wrong_shape", "alias")

#: The check that is for each fault, and what it says.
CAUGHT = {
    "zeros": ("forward-right", "out: error"),
    "writes_nan": ("forward-right", "out: not every element is finite, or was written"),
    "leaves_output": ("forward-right", "out: not every element is finite, or was written"),
    "skips_last_tile": (
        "forward-uneven_lengths",
        "causal of 263.*out: error.*It is wrong in .*, only where there are more .* queries of the last tile",
    ),
    "wrong_dk": ("backward-right", "dk( as a part)?: error"),
    "wrong_shape": ("forward-repeated", r"out: \(\d+, \d+\) float32 on cpu was returned; .* is the contract"),
    "wrong_dtype": ("forward-repeated", "float64 on cpu was returned; .* float32 on cpu is the contract"),
    "alias": ("forward-repeated", "out: it shares its memory with q"),
    "packs_gradients": ("backward-repeated", "dv: it shares its memory with dk"),
    "changes_state": ("forward-right", "the kernel changes global state: .*default dtype"),
    "exits": ("forward-right", "exits, .* heads: the worker exited with code 0"),
    "changes_inputs": ("backward-right", "dout: the kernel changed this input"),
    "ignores_strides": ("forward-strided_inputs", "of slices of larger tensors: out: not every element is finite"),
    "once_in_many": ("forward-repeated", r"call 11 of 24: out: error"),
    "caches_by_pointer": ("forward-repeated", "call 4 of 24: out: error"),
    "not_deterministic": ("forward-deterministic", "4 runs: out repeated: equal inputs gave other bits"),
    "plans_another_form": ("forward-reused_plan", "the plan's form is dense, but the offer .* is causal"),
    "keeps_its_last_plan": ("forward-reused_plan", "out with one plan: error"),
    "needs_its_forward": ("backward-paired", "naive[+]needs_its_forward, .* has no attribute 'q'"),
    "base_two": ("forward-paired", "base_two[+]naive, .* lse: error"),
    "raises": ("forward-right", "RuntimeError: no such tile"),
    "no_backward": ("loadable", "no_backward.forward does not take lse, out"),
}
#: Faults that no other check of the forward sees.
ALONE = ("skips_last_tile", "ignores_strides", "caches_by_pointer", "not_deterministic")

#: What pytest runs: the right kernel and the distribution on every check, and each bad kernel on those asked for.
CHOSEN = [
    "(test_all and ([right- or [longca-bad-))",
    *(f"(test_all and [{kernel}- and -{check}])" for kernel, (check, _) in CAUGHT.items()),
    *(f"(test_all and [{kernel}- and -forward-)" for kernel in ALONE),
    "(test_here and [right-)",
    *(f"(test_here and [{kernel}- and -{CAUGHT[kernel][0]}])" for kernel in HERE if kernel in CAUGHT),
    "(test_declared and -forward-right])",
]

pytestmark = pytest.mark.xdist_group("conformance")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What pytest says of each test id: its outcome and its message."""
    fakes = FakePlugins(tmp_path_factory.mktemp("bad"))
    fakes.add("longca-bad", BAD, module="bad_kernels", prelude=False)
    (fakes.root / "test_bad.py").write_text(SUITE.replace("{HERE}", ", ".join(map(repr, HERE))), "utf-8")
    options = ("-rA", "-q", "-p", "no:cacheprovider", "--tb=no", "--strict-markers", "-k", " or ".join(CHOSEN))
    ran = fakes.python("-m", "pytest", *options, timeout=1500, COLUMNS="400", OMP_NUM_THREADS="1", CI="1")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    found = re.findall(r"^(\w+) test_bad\.py::(\w+)\[(.*?)\](?: - (.*))?$", ran.stdout, re.MULTILINE)
    return {(test, case): (outcome, message) for outcome, test, case, message in found}


def failures(report, kernel, test="test_all"):
    """The ids of a kernel's cases that fail, with their messages."""
    return {
        case: message
        for (name, case), (outcome, message) in report.items()
        if name == test and outcome == "FAILED" and case.startswith(f"{kernel}-")
    }


@pytest.mark.parametrize("kernel", CAUGHT)
def test_a_bad_kernel_is_caught_by_the_check_that_is_for_it(report, kernel):
    check, message = CAUGHT[kernel]
    found = failures(report, kernel)
    (case,) = [case for case in found if case.endswith(f"-{check}")]
    assert re.search(message, found[case])
    if kernel in ALONE:
        assert {case for case in found if "-forward-" in case} == {case}


@pytest.mark.parametrize("kernel", sorted(set(HERE) - {"right"}))
def test_a_bad_kernel_is_caught_in_the_process_of_pytest_too(report, kernel):
    check, message = CAUGHT[kernel]
    (found,) = [said for case, said in failures(report, kernel, "test_here").items() if case.endswith(f"-{check}")]
    assert re.search(message, found)
    assert not failures(report, "right", "test_here")


def test_a_right_kernel_passes(report):
    assert not failures(report, "right")
    passed = {case for (test, case), (outcome, _) in report.items() if test == "test_all" and outcome == "PASSED"}
    assert passed >= {"right-loadable", "right-causal-float32-forward-right", "right-causal-float32-backward-right"}


def test_a_module_that_imports_torch_is_caught(report):
    found = failures(report, "longca-bad")
    assert "importing bad_kernels imports bad_kernels, torch" in found["longca-bad-light_import"]


def test_expected_failures_are_strict(report):
    assert report["test_declared", "zeros-causal-float32-forward-right"] == ("XFAIL", "it returns zeros")
    found = failures(report, "right", "test_declared")
    assert set(found) == {"right-causal-float32-forward-right"}


def test_what_is_asked_for_exists():
    with pytest.raises(UnknownNameError, match="longca-core"):
        conformance("longca-cor")
    with pytest.raises(UnknownNameError, match="Did you mean naive"):
        conformance(kernels=["naiv"])
    with pytest.raises(RequestError, match="needs a distribution"):
        conformance()
    with pytest.raises(RequestError, match="means no check here; checks of naive: deterministic"):
        conformance(kernels=["naive"], expected_failures={("naive", "rigth"): "typo"})


def test_a_pair_is_held_to_the_offers_of_its_backward_half():
    cases = {case.id: case for case in checks_of(None, ["naive+sdpa"], Device("cpu"))}
    assert not any("-forward-" in name for name in cases)
    for check in ("repeated", "deterministic", "reused_plan"):
        cases[f"naive+sdpa-causal-float32-backward-{check}"].run()
    cases["naive+sdpa-loadable"].run()
    with pytest.raises(UnknownNameError, match="unknown backward half 'sdp'"):
        conformance(kernels=["naive+sdp"])


BACKWARD = """
from longca.kernels.base import Plan
from longca_builtin.naive import Naive
from longca.masks import Form

class Backward:
    backward = Naive.backward

    def plan(self, problem):
        return Plan(problem, Form.CAUSAL, "torch.matmul")
"""
PROVIDES = """
@hookimpl
def provide_kernel():
    back = {"backward": "external", "forward": False, "unequal_lengths": True, "deterministic": True}
    only = offer("causal", dtypes=("float32",), gqa=False, head_dims=(32,), **back)
    return kernel("back", only, implementation="only_backward:Backward")
"""
RUN = """
from longca import Device
from longca_bench.conformance.suite import checks_of
for case in checks_of(None, ["back"], Device("cpu")):
    case.run()
    print(case.id)
"""


def test_a_backward_alone_is_held_to_its_offers(fakes):
    (fakes.add("backs", PROVIDES) / "only_backward.py").write_text(BACKWARD, "utf-8")
    ran = fakes.python("-c", RUN, LONGCA_PLUGINS="backs", OMP_NUM_THREADS="1")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["back-loadable", *(f"back-causal-float32-backward-{name}" for name in CHECKS)]
