"""Every kernel of the plugins that a CPU can compute, on the road of a run: changed inputs, checked calls, timing.

`core/tests/bench/measuring/test_runner.py` has the core's kernels. Triton's interpreter has no products of bfloat16, so
its kernels run in float16. PyTorch compiles FlexAttention for CPUs without a log-sum-exp and without gradients. All
other kernels need a GPU's library.
"""

from __future__ import annotations

import importlib.util

import pytest

from longca.manifests import Device
from longca.plugins import registry
from longca_bench.measuring.runner import run_cases
from longca_bench.suites.cases import expand
from longca_bench.suites.one_problem import problem_suite

#: Those of the test of the core's kernels: intervals of two kinds, and blocks of 64 tokens.
MASKS = ("causal_document", "shared_question", "uniform_block_sparse")
#: Kernels, the dtypes in which a CPU computes them, and whether Triton's interpreter does.
KERNELS = {
    "online": (("float16", "bfloat16", "float32", "float64"), False),
    "flashmask": (("float16",), True),
    "bsa": (("float16",), True),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name != "bsa")) for name in KERNELS]
)
def test_every_kernel_and_form_passes_on_a_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes, is_interpreted = KERNELS[name]
    found = registry()
    if is_interpreted:
        if importlib.util.find_spec("triton") is None:
            pytest.skip("Triton is not installed")
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        offers = tuple(offer.model_copy(update={"cpu": True}) for offer in found.manifest(name).offers)
        monkeypatch.setitem(found.kernels, name, found.manifest(name).model_copy(update={"offers": offers}))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    records = []
    for mask in MASKS:
        suite = problem_suite(mask, seqlens=[96], heads=["2:1"], head_dims=[64], dtypes=dtypes, kernels=[name])
        records += run_cases(suite, expand(suite, found.kernels), Device("cpu"), found, lambda record: None)
    taken = [record for record in records if record.status != "unsupported"]
    # An interpreter's times may be too uneven to be believed. A wrong result is never suspect.
    assert {record.status for record in taken} <= {"ok", "suspect"}, [record.message for record in taken]
    assert {(record.dtype, record.direction) for record in taken} == {
        (dtype, direction) for dtype in dtypes for direction in ("forward", "backward")
    }
    offered = {str(offer.form) for offer in found.manifest(name).offers}
    assert {record.form for record in taken} == offered


def test_no_kernel_is_forgotten() -> None:
    """A kernel that offers a CPU is here, or among the core's."""
    manifests = registry().kernels.items()
    on_cpu = {name for name, manifest in manifests if any(offer.cpu for offer in manifest.offers)}
    assert on_cpu == {"naive", "sdpa", *(name for name, (_, is_interpreted) in KERNELS.items() if not is_interpreted)}
