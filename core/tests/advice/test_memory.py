"""The memory of a call on a rank: its parts, the moment of its peak, and what records say of kernels."""

import pytest

from longca import masks, registry
from longca.errors import UnknownNameError, UnsupportedError
from longca.manifests import Device, Problem
from longca.masks import Form
from longca_advice.evidence import shipped
from longca_advice.memory import KernelMemory, gradient_bytes, held_bytes, rank_bytes, tensor_bytes
from longca_advice.work import work_of

from . import rows

HOPPER = Device("cuda", (9, 0))
NOTHING = KernelMemory(())


def _rank(problem, *kernels, learnt=NOTHING):
    return rank_bytes(registry(), learnt, problem, kernels)


def _peaks(kernel, workspace, plan=0):
    """Measured calls of several lengths and heads, whose workspace and plan are functions of the bytes of q and k."""
    for seqlen in (512, 1024, 2048, 4096):
        for heads_q, heads_kv in ((8, 2), (8, 8), (16, 4)):
            for direction in ("forward", "backward"):
                q, k, lse = seqlen * heads_q * 256, seqlen * heads_kv * 256, seqlen * heads_q * 4
                results = q + lse if direction == "forward" else q + 2 * k
                about = {"heads_q": heads_q, "heads_kv": heads_kv, "direction": direction, "form": Form.CAUSAL}
                peak = results + workspace(q, k, direction)
                yield rows.row(kernel, "causal", seqlen, peak=peak, plan=plan, **about)


def _problem(seqlen=4096, pattern="causal", **fields):
    mask = masks.build(pattern, seqlen=seqlen)
    return Problem(**{"mask": mask, "heads_q": 8, "heads_kv": 2, "device": HOPPER, **fields})


def test_tensors_are_counted_one_by_one():
    problem = _problem()
    token = 128 * 2
    q, k, lse = 4096 * 8 * token, 4096 * 2 * token, 4096 * 8 * 4
    assert tensor_bytes(problem, 4096, 4096) == 2 * q + 2 * k + lse
    assert tensor_bytes(problem, 4096, 4096, training=True) == 3 * q + 2 * k + lse
    assert gradient_bytes(problem, 4096, 4096) == q + 2 * k
    assert [held_bytes(problem, 4096, 4096, training=both) for both in (False, True)] == [
        2 * q + 2 * k + lse, 4 * q + 4 * k + lse,
    ]  # fmt: skip


def test_training_peaks_in_the_backward():
    found, problem = _rank(_problem(), "naive", "naive"), _problem()
    assert set(found.parts) == {"tensors", "gradients", "workspace"}
    assert found.parts["gradients"] == gradient_bytes(problem, 4096, 4096)
    assert found.total == sum(found.parts.values())


def test_a_large_forward_workspace_is_the_peak():
    problem = _problem(2048, head_dim=8, heads_q=64, heads_kv=64)
    forward, trained = (_rank(problem, *kernels) for kernels in (("naive",), ("naive", "sdpa")))
    assert trained.parts["workspace"] == forward.parts["workspace"]
    assert "gradients" not in trained.parts


def test_workspaces_and_plans_are_learnt_from_peaks():
    """One forward that takes nothing, a backward that sums dq in float32, and a plan of a MiB."""
    learnt = KernelMemory(_peaks("sdpa", lambda q, k, way: 0 if way == "forward" else 2 * q, plan=2**20))
    problem = _problem(8192, heads_q=32, heads_kv=8)
    found = _rank(problem, "sdpa", "sdpa", learnt=learnt)
    assert found.parts["workspace"] == pytest.approx(2 * 8192 * 32 * 256, rel=0.01)
    assert found.unknown == ()
    forward = _rank(problem, "sdpa", learnt=learnt)
    assert forward.parts.get("workspace", 0) < 2**20
    assert 0 < forward.parts["plan"] < 2**24


def test_what_nobody_states_or_measured_is_said():
    unknown = ("workspace of sdpa", "plan of sdpa")
    assert _rank(_problem(), "sdpa", "sdpa").unknown == unknown
    learnt = KernelMemory(_peaks("sdpa", lambda q, k, way: 0))
    cpu = _problem(device=Device("cpu"))
    assert _rank(cpu, "sdpa", learnt=learnt).unknown == unknown, "peaks of a GPU say nothing of a CPU"


def test_an_unknown_kernel_and_one_that_does_not_take_it():
    with pytest.raises(UnknownNameError):
        _rank(_problem(), "nobody")
    with pytest.raises(UnsupportedError):
        _rank(_problem(dtype="float64"), "sdpa")


@pytest.mark.parametrize(("kernel", "form"), [("fa4", Form.VARLEN), ("cudnn_flex", Form.ROW_INTERVALS)])
def test_the_shipped_evidence_knows_the_memory_of_kernels(kernel, form):
    """A backward of a kernel for Hopper sums dq in float32 and keeps two numbers of each query."""
    mask = masks.build("causal_document", seqlen=49152, documents=[40000, 9152])
    problem = _problem(mask=mask, heads_q=48, heads_kv=8, direction="backward")
    found = KernelMemory(shipped()).predicted("workspace", kernel, problem, work_of(mask, form))
    q, k = 49152 * 48 * 256, 49152 * 8 * 256
    assert found == pytest.approx(2 * q + 4 * k, rel=0.1)
