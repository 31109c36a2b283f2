"""Triton kernels of the plugins under its interpreter, measured as in a run: changed inputs, checked calls, timing.

The interpreter has no products of bfloat16, so the kernels run in float16.
"""

from __future__ import annotations

import pytest

from longca.manifests import Device
from longca.plugins import registry
from longca_bench.measuring.runner import run_cases
from longca_bench.suites.cases import expand
from longca_bench.suites.one_problem import problem_suite

#: Those of the test of the core's kernels: intervals of two kinds, and blocks of 64 tokens.
MASKS = ("causal_document", "shared_question", "uniform_block_sparse")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bsa", pytest.param("flashmask", marks=pytest.mark.exhaustive)])
def test_every_form_passes_on_a_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = registry()
    offers = tuple(offer.model_copy(update={"cpu": True}) for offer in found.manifest(name).offers)
    monkeypatch.setitem(found.kernels, name, found.manifest(name).model_copy(update={"offers": offers}))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    records = []
    for mask in MASKS:
        suite = problem_suite(mask, seqlens=[96], heads=["2:1"], head_dims=[64], dtypes=["float16"], kernels=[name])
        records += run_cases(suite, expand(suite, found.kernels), Device("cpu"), found, lambda record: None)
    taken = [record for record in records if record.status != "unsupported"]
    # An interpreter's times may be too uneven to be believed. A wrong result is never suspect.
    assert {record.status for record in taken} <= {"ok", "suspect"}, [record.message for record in taken]
    assert {record.direction for record in taken} == {"forward", "backward"}
    offered = {str(offer.form) for offer in found.manifest(name).offers}
    assert {record.form for record in taken} == offered
