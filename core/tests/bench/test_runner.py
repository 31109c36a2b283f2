import pytest
import torch

from longca.bench.cases import Selection, expand
from longca.bench.runner import run_cases
from longca.bench.suite import load_suite
from longca.kernels import history as history_module
from longca.kernels.naive import Naive
from longca.manifests import Device

CPU = Device("cpu")


def run(core, **selection):
    suite = load_suite("quick")
    seen = []
    cases = expand(suite, core.kernels, Selection(**{"patterns": ("causal",), "seqlens": (96,), **selection}))
    records = run_cases(suite, cases, CPU, core, seen.append)
    assert records == seen
    return records


def test_every_pattern_and_kernel(core):
    records = run(core, patterns=())
    assert {record.status for record in records} == {"ok"}, [r.message for r in records if r.status != "ok"]
    for record in records:
        assert record.median in record.samples or len(record.samples) % 2 == 0
        assert record.tflops == pytest.approx(record.flops / record.median / 1e12)
        assert {finding["tensor"] for finding in record.findings} >= {"out", "lse"}
    backward, forward = (next(r for r in records if r.direction == d) for d in ("backward", "forward"))
    assert backward.flops == 2.5 * forward.flops


def spoil(core, monkeypatch, forward):
    kernel = Naive()
    monkeypatch.setattr(kernel, "forward", forward)
    monkeypatch.setattr(core, "load", lambda name: kernel)


def test_wrong_is_never_timed(core, monkeypatch, history):
    def half(q, k, v, plan, **buffers):
        out, lse = Naive().forward(q, k, v, plan, **buffers)
        out[5] *= 0.5
        return out, lse

    spoil(core, monkeypatch, half)
    for record in run(core, kernels=("naive",)):
        assert record.status == "wrong"
        assert "token 5" in record.message
        assert record.samples == ()
        assert record.median is None
    assert not history.exists()


@pytest.mark.parametrize(
    ("error", "status"),
    [(RuntimeError("broken"), "error"), (torch.OutOfMemoryError("full"), "oom"), (KeyError("x"), "error")],
)
def test_errors_are_kept_and_the_next_case_runs(core, monkeypatch, error, status):
    def fail(*_arguments, **_buffers):
        raise error

    spoil(core, monkeypatch, fail)
    records = run(core, kernels=("naive",))
    assert [record.status for record in records] == [status, status]
    assert type(error).__name__ in records[0].message or status == "oom"


def test_unsupported_has_reasons(core):
    suite = load_suite("quick")
    cases = expand(suite, core.kernels, Selection(patterns=("causal",), seqlens=(96,), kernels=("sdpa",)))
    (record, _) = run_cases(suite, cases, Device("cuda", (4, 0)), core, lambda record: None)
    assert record.status == "unsupported"
    assert "compute capability" in record.message


def test_history_is_kept(core):
    run(core, kernels=("sdpa",))
    entries = list(history_module.entries())
    assert [(e.kernel, e.pattern, e.seqlen, e.direction) for e in entries] == [
        ("sdpa", "causal", 96, "forward"),
        ("sdpa", "causal", 96, "backward"),
    ]
