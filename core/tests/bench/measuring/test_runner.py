import statistics

import pytest

from longca.manifests import Device
from longca_advice.devices import evidence_name
from longca_advice.history import history
from longca_bench.measuring.case_record import judged
from longca_bench.measuring.messages import Result
from longca_bench.measuring.options import Options
from longca_bench.measuring.runner import ROUNDS, run_cases
from longca_bench.measuring.status import Status
from longca_bench.measuring.timing import LEAST
from longca_bench.suites.case import Case
from longca_bench.suites.cases import Selection, expand
from longca_bench.suites.one_problem import problem_suite
from longca_bench.suites.suite import load_suite

CPU = Device("cpu")


def run(core, **selection):
    suite = load_suite("quick")
    sweep = suite.sweep[0].model_copy(update={"patterns": ("*",)})
    suite, seen = suite.model_copy(update={"sweep": (sweep,)}), []
    cases = expand(suite, core.kernels, Selection(**{"patterns": ("causal",), "seqlens": (96,), **selection}))
    records = run_cases(suite, cases, CPU, core, seen.append)
    assert records == seen
    return records


@pytest.mark.parametrize(
    "patterns",
    [("causal_document", "prefix_lm_causal", "uniform_block_sparse"), pytest.param((), marks=pytest.mark.exhaustive)],
    ids=["some", "all"],
)
def test_every_pattern_and_kernel_is_measured_and_kept_in_the_history(core, patterns):
    records = run(core, patterns=patterns)
    assert {record.status for record in records} == {"ok"}, [r.message for r in records if r.status != "ok"]
    for record in records:
        assert record.median in record.samples or len(record.samples) % 2 == 0
        assert record.tflops == pytest.approx(record.flops / record.median / 1e12)
        assert {finding["tensor"] for finding in record.findings} >= {"out", "lse"}
    backward, forward = (next(r for r in records if r.direction == d) for d in ("backward", "forward"))
    assert backward.flops == 2.5 * forward.flops
    about = [(record.kernel, record.pattern, record.seqlen, record.direction) for record in records]
    assert [(row.kernel, row.pattern, row.seqlen, row.direction) for row in history().rows] == about
    assert {row.run.device for row in history().rows} == {evidence_name(CPU)}


@pytest.mark.parametrize(
    "pattern",
    [
        "uniform_block_sparse",
        *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("causal_document", "shared_question")),
    ],
)
def test_every_dtype_and_kernel(core, pattern):
    """Changed inputs and their checks are right in every dtype: float16 has the smallest range."""
    dtypes = ("float16", "bfloat16", "float64")
    suite = problem_suite(pattern, seqlens=[96], heads=["4:2"], head_dims=["16:24"], dtypes=dtypes)
    records = run_cases(suite, expand(suite, core.kernels), CPU, core, lambda record: None)
    assert {record.dtype for record in records if record.status == "ok"} == set(dtypes)
    found = {record.status for record in records}
    assert found <= {"ok", "unsupported"}, [r.message for r in records if r.status not in ("ok", "unsupported")]


@pytest.mark.exhaustive
def test_two_workers_share_the_cases(core):
    """What becomes of kernels that are wrong or deadly is test_faults'."""
    suite = load_suite("quick")
    cases = expand(suite, core.kernels, Selection(patterns=("causal", "full"), seqlens=(96, 97)))
    records = run_cases(suite, cases, CPU, core, lambda record: None, Options(workers=2))
    assert {record.status for record in records} == {"ok"}
    assert sorted(record.case for record in records) == sorted(case.digest(str(CPU)) for case in cases)


def test_two_kernels_take_turns(core):
    suite = load_suite("quick")
    cases = expand(suite, core.kernels, Selection(patterns=("causal",), seqlens=(96,)))
    records = run_cases(suite, cases, CPU, core, lambda record: None, Options(interleave=True))
    assert {record.status for record in records} == {"ok"}
    for record in records:
        assert len(record.samples) >= ROUNDS * LEAST
        assert record.median == pytest.approx(statistics.median(record.samples))
        assert record.tflops == pytest.approx(record.flops / record.median / 1e12)


def test_faster_than_the_device_can_be_is_suspect():
    h200 = Device("cuda", (9, 0), name="NVIDIA H200")
    case = Case("sdpa", "full", 96, "auto", 0, 4, 2, 64, "bfloat16", "forward")
    fast, slow = (Result(Status.OK, "", {"tflops": tflops}) for tflops in (1200.0, 700.0))
    assert judged(fast, h200, case).status == "suspect"
    assert "989" in judged(fast, h200, case).message
    assert judged(slow, h200, case).status == "ok"
    assert judged(fast, CPU, case).status == "ok", "nobody knows a CPU's peak"


def test_unsupported_has_reasons(core):
    suite = load_suite("quick")
    cases = expand(suite, core.kernels, Selection(patterns=("causal",), seqlens=(96,), kernels=("sdpa",)))
    (record, _) = run_cases(suite, cases, Device("cuda", (4, 0)), core, lambda record: None)
    assert record.status == "unsupported"
    assert "compute capability" in record.message


def test_a_pair_is_measured_as_a_kernel_is(core):
    forward, backward = run(core, kernels=("naive+sdpa",))
    assert (forward.status, backward.status) == ("ok", "ok"), (forward.message, backward.message)
    assert (forward.kernel, forward.form, forward.backend) == ("naive+sdpa", "row_intervals", "torch.matmul")
    assert backward.form == "row_intervals + causal"
    assert backward.backend.startswith("torch.matmul + ")
    assert backward.distribution == "longca-core", "both halves are of one distribution"
    assert {finding["tensor"] for finding in backward.findings} >= {"out", "lse", "dq", "dk", "dv"}
