"""The misbehaving kernels: the table is whole, and its kernels are right elsewhere. `test_faults` runs them all."""

import importlib
import re
import sys
from collections import Counter
from functools import cache

import pytest

from longca.testing import MISBEHAVING
from longca_bench.conformance.misbehaving.honest import Honest
from longca_bench.measuring.status import Status
from longca_bench.verification.verify import check_backward, check_forward

ON_CPU = [kernel for kernel in MISBEHAVING if kernel.runs_on("cpu")]
IN_MODULES = [kernel for kernel in MISBEHAVING if kernel.module]


def load(kernel):
    module, _, name = kernel.kernel.partition(":")
    return getattr(importlib.import_module(module), name)


def test_each_kernel_has_one_line_and_each_line_a_kernel():
    assert max(Counter(kernel.name for kernel in MISBEHAVING).values()) == 1
    assert len(ON_CPU) >= 60
    assert all(re.fullmatch(r"(It|Its|A) [^.]*\w.*\.", kernel.what) for kernel in MISBEHAVING)
    listed = {load(kernel) for kernel in IN_MODULES}
    assert len(listed) == len(IN_MODULES)
    for module in {sys.modules[kernel.kernel.partition(":")[0]] for kernel in IN_MODULES}:
        there = {value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Honest)}
        assert there - {Honest} <= listed, module.__name__


def test_a_record_holds_by_its_status_message_and_time():
    late = next(kernel for kernel in MISBEHAVING if kernel.seconds)
    assert late.holds("ok", "", late.seconds)
    assert not late.holds("ok", "", late.seconds / 2)
    zeros = next(kernel for kernel in MISBEHAVING if kernel.name == "zeros")
    assert zeros.holds(Status.WRONG, "out: error 1")
    assert not zeros.holds(Status.OK, "out: error 1")
    assert not zeros.holds(Status.WRONG, "dq: error 1")


def test_the_door_imports_no_kernel_of_the_table(fakes):
    kernels = "{kernel.kernel.partition(':')[0] for kernel in longca.testing.MISBEHAVING}"
    ran = fakes.python("-c", f"import sys, longca.testing; print({kernels} & set(sys.modules))")
    assert (ran.returncode, ran.stdout) == (0, "set()\n")


@cache
def drawn(setup):
    return setup()


@pytest.mark.parametrize("kernel", [k for k in IN_MODULES if k.device != "cuda"], ids=lambda kernel: kernel.name)
def test_a_kernel_is_right_in_its_other_direction(kernel, setup):
    given, made, honest = drawn(setup), load(kernel)(), Honest()
    plan = honest.plan(given.problem)
    if kernel.direction == "backward":
        found, *_ = check_forward(made, plan, given.inputs, given.expected)
    else:
        forward = honest.forward(given.inputs.q, given.inputs.k, given.inputs.v, plan)
        found = check_backward(made, plan, given.inputs, *forward, given.expected)
    assert found.passed, found.failures
