"""Offers that nobody verified on a device: verified once on this machine, and then used like others.

No GPU is here. A `sitecustomize` module says that the device is an A100, and puts its tensors on the CPU. Everything
else is real: the processes, the plugins, the verification and the file of its results.
"""

import json
import re

import pytest

#: The device is told to every process, and the tensors of a device of kind `cuda` are the CPU's.
A100 = """
import importlib.abc, importlib.util, sys
from longca.manifests import Device, devices

HERE = Device("cuda", (8, 0), 2**34, "Fake A100")
devices.current_device = lambda: HERE

class Late(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "longca.kernels.base":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            real = module.torch_device
            module.device_of = lambda tensor: HERE
            module.torch_device = lambda device: real(Device("cpu"))
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Late())
"""
PROVIDES = """
FEW = {"dtypes": ("float32",), "gqa": False, "head_dims": (32,), "max_seqlen": 300, "backward": "external",
       "cpu": False, "verified_on": "==9.0", "expected_on": ">=8.0"}

@hookimpl
def provide_kernel():
    return [kernel("fresh", offer("causal", **FEW), implementation="fresh_kernels:Right"),
            kernel("broken", offer("causal", **FEW), implementation="fresh_kernels:Wrong")]
"""
KERNELS = """
from longca.kernels.base import Plan
from longca_builtin.naive import Naive
from longca.masks import Form

class Right:
    forward, backward = Naive.forward, Naive.backward

    def plan(self, problem):
        return Plan(problem, Form.CAUSAL, "torch.matmul")

class Wrong(Right):
    def backward(self, *arguments, **buffers):
        dq, dk, dv = super().backward(*arguments, **buffers)
        return dq, dk, dv.mul_(1.01)
"""


@pytest.fixture
def on_a100(fakes):
    folder = fakes.add("fresh", PROVIDES)
    (folder / "fresh_kernels.py").write_text(KERNELS, "utf-8")
    (folder / "sitecustomize.py").write_text(A100, "utf-8")
    fakes.env |= {"LONGCA_PLUGINS": "fresh", "OMP_NUM_THREADS": "1"}
    return fakes


def listed(on_a100, kernel):
    options = ("--mha", "--head-dim", "32", "--dtype", "float32")
    ran = on_a100.longca("list-capabilities", "--mask", "causal", "--json", *options)
    cells = json.loads(ran.stdout)["cells"]
    (forward, backward) = [cell for cell in cells if cell["kernel"] == kernel]
    assert (forward["status"], forward["verified"]) == (backward["status"], backward["verified"])
    return forward["status"], forward["verified"]


def run(on_a100, kernel, *options):
    """The records of a kernel on a small problem, by direction, and the exit code."""
    problem = ("--seqlen", "128", "--heads", "3:3", "--head-dim", "32", "--dtype", "float32")
    out = on_a100.root / f"{kernel}{len(list(on_a100.root.iterdir()))}"
    ran = on_a100.longca("run", "causal", "--kernel", kernel, *problem, "--json", "--out", str(out), *options)
    return {record["direction"]: record for record in json.loads(ran.stdout)}, ran


@pytest.mark.exhaustive
def test_an_offer_is_verified_once_and_then_used_like_others(on_a100):
    assert listed(on_a100, "fresh") == ("expected", None)
    assert listed(on_a100, "naive") == ("here", "verified")
    plain = on_a100.longca("verify", "--kernel", "fresh")
    assert plain.returncode == 1
    assert "fresh should run on this device, and nobody verified it there" in plain.stderr
    ran = on_a100.longca("verify", "--unverified", "--json")
    assert ran.returncode == 1, "one of the two kernels is wrong"
    found = json.loads(ran.stdout)
    assert list(found) == ["fresh", "broken"], "kernels that were verified on such devices are left out"
    assert [row["status"] for each in found.values() for row in each["offers"]] == ["ok", "ok", "ok", "wrong"]
    assert ran.stderr == "fresh: 1 of 1 offers passed, and count as verified on Fake A100 (compute capability 8.0)\n"
    assert listed(on_a100, "fresh") == ("here", "verified here")
    assert listed(on_a100, "broken") == ("expected", None)
    again = on_a100.longca("verify", "--kernel", "fresh", "--unverified")
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr.startswith("no offer of fresh waits to be verified on Fake A100")
    assert on_a100.longca("verify", "--kernel", "fresh").returncode == 0, "a plain verification takes it too"


def test_the_matrix_tells_the_three_apart(on_a100):
    matrix = ("list-capabilities", "--mask", "causal", "--mha", "--head-dim", "32")
    text = on_a100.longca(*matrix).stdout
    rows = dict(line.split()[:2] for line in text.splitlines() if len(line.split()) == 2)
    assert (rows["fresh"], rows["naive"]) == ("fb?", "FB")
    assert "Run `longca verify --unverified --kernel NAME`" in " ".join(text.split())
    assert on_a100.longca("verify", "--unverified", "--kernel", "fresh").returncode == 0
    text = on_a100.longca(*matrix).stdout
    rows = dict(line.split()[:2] for line in text.splitlines() if len(line.split()) == 2)
    assert (rows["fresh"], rows["broken"]) == ("FB*", "fb?")
    why = on_a100.longca(*matrix, "--why", "fresh", "causal").stdout
    assert "runs here, verified on this machine" in why
    assert "on compute capability ==9.0 and compute capability >=8.0 (expected)" in why


def test_a_run_says_that_nobody_verified_the_offer(on_a100):
    records, ran = run(on_a100, "fresh")
    assert ran.returncode == 1
    assert {record["status"] for record in records.values()} == {"unsupported"}
    assert (
        "and nobody verified it there; its compute capability is 8.0. Run `longca verify"
        in records["forward"]["message"]
    )
    records, ran = run(on_a100, "fresh", "--unverified")
    assert ran.returncode == 0, ran.stderr
    assert {(record["status"], record["unverified"]) for record in records.values()} == {("ok", True)}
    assert "nobody verified fresh on Fake A100 (compute capability 8.0) before" in ran.stderr
    case = records["forward"]["case"]
    assert on_a100.longca("verify", "--unverified", "--kernel", "fresh").returncode == 0
    records, ran = run(on_a100, "fresh")
    assert {(record["status"], record["unverified"]) for record in records.values()} == {("ok", False)}
    assert records["forward"]["case"] == case


def test_a_result_that_cannot_be_stored_is_an_error(on_a100):
    (on_a100.root / "file").write_text("", "utf-8")
    ran = on_a100.longca(
        "verify", "--unverified", "--kernel", "fresh", LONGCA_VERIFIED=str(on_a100.root / "file" / "x")
    )
    assert ran.returncode == 1
    assert "fresh was verified, and the result cannot be stored in" in ran.stderr
    assert "Set LONGCA_VERIFIED to a path that can be written" in ran.stderr


ATTENTION = """
import logging, sys
import torch, longca
from longca import masks
from longca.errors import LongCAError

logging.basicConfig(level="WARNING", format="%(message)s")
mask = masks.build("causal", 100)
q, k, v = (torch.randn(100, 3, 32, requires_grad=True) for _ in range(3))
for kernel, allowed in {asked!r}:
    try:
        out = longca.attention(q, k, v, mask, kernel=kernel, allow_unverified=allowed)
        out.sum().backward()
        expected = longca.attention(q, k, v, mask, kernel="naive")
        print(kernel, allowed, "right" if torch.allclose(out, expected, atol=1e-5) else "wrong")
    except LongCAError as error:
        print(kernel, allowed, type(error).__name__, error)
"""


def attention(on_a100, *asked):
    ran = on_a100.python("-c", ATTENTION.format(asked=asked))
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines(), ran.stderr


def test_attention_tries_an_unverified_offer_before_its_first_use(on_a100):
    asked = ("fresh", False), ("fresh", True), ("naive+fresh", True), ("broken", True), ("naive+broken", True)
    (refused, right, pair, wrong, wrong_pair), log = attention(on_a100, *asked)
    assert refused.startswith(
        "fresh False UnsupportedError fresh should run on this device, and nobody verified it there"
    )
    assert (right, pair) == ("fresh True right", "naive+fresh True right")
    assert log.count("nobody verified fresh on Fake A100 (compute capability 8.0); it is tried") == 1
    assert "Run `longca verify --unverified --kernel fresh`" in log
    assert wrong.startswith(
        "broken True VerificationError broken is not verified on Fake A100 (compute capability 8.0): dv by 1.00% on"
    )
    assert "Take another kernel, or run `longca verify --unverified --kernel broken`" in wrong
    assert wrong_pair.startswith("naive+broken True VerificationError broken is not verified")


def test_attention_goes_by_the_stored_verdict(on_a100):
    assert on_a100.longca("verify", "--unverified", "--kernel", "fresh").returncode == 0
    assert on_a100.longca("verify", "--unverified", "--kernel", "broken").returncode == 1
    (right, wrong), log = attention(on_a100, ("fresh", False), ("broken", True))
    assert (right, "nobody verified" in log) == ("fresh False right", False)
    assert re.search("causal float32 backward: wrong on .* heads.*: dv", wrong), str(wrong)
