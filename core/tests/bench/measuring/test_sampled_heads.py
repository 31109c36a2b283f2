"""Where the reference has some heads, the others are held too: heads change their places between calls."""

import os

import torch

from longca import plugins
from longca.manifests import Device
from longca_bench.measuring.bench import Bench
from longca_bench.measuring.messages import Setup
from longca_bench.measuring.worker import Workers
from longca_bench.measuring.world import Instruments, World
from longca_bench.suites.cases import expand
from longca_bench.suites.one_problem import problem_suite
from longca_bench.suites.tasks import task_of
from longca_bench.verification import head_sample, reference
from longca_bench.verification.head_sample import HeadSample

CPU = Device("cpu")
PLUGIN = """
@hookimpl
def provide_kernel():
    takes = offer("row_intervals", dtypes=("float32",), backward="external")
    return kernel("outer", takes, implementation="outer_kernels:Outer")
"""
KERNELS = '''
from longca_builtin.naive import Naive

class Outer(Naive):
    """Is right in the first and the last of four heads."""
    def forward(self, *arguments, **buffers):
        out, lse = super().forward(*arguments, **buffers)
        out[:, 1:-1] *= 1.5
        return out, lse
'''


def test_a_kernel_that_is_wrong_in_other_heads_is_wrong(fakes, monkeypatch):
    folder = fakes.add("outer", PLUGIN)
    (folder / "outer_kernels.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    outer = HeadSample((0, 3), (0, 3))
    monkeypatch.setattr(head_sample, "SAMPLED_PAIRS", 0)
    monkeypatch.setattr(reference, "sample_heads", lambda problem: outer if problem.heads_q == 4 else None)
    suite = problem_suite("causal", seqlens=[80], heads=["4:4"], head_dims=[16], dtypes=["float32"])
    device, registry = torch.device("cpu"), plugins.Registry()
    workers = Workers(device)
    bench = Bench(Setup(CPU, frozenset({80})), Instruments(World(device), workers))
    cases = [case for case in expand(suite, registry.kernels) if case.kernel in ("outer", "naive")]
    tasks = [task_of(registry, case, CPU) for case in cases if case.direction == "forward"]
    try:
        found = {task.case.kernel: bench.measure(task) for task in tasks}
    finally:
        workers.close()
    right, wrong = found["naive"], found["outer"]
    assert (right.status, right.fields["verified_kv_heads"]) == ("ok", (0, 3)), right.message
    assert wrong.status == "wrong"
    failed = [finding for finding in wrong.fields["findings"] if not finding["passed"]]
    assert failed
    assert {finding["head"] for finding in failed if not finding["note"]} <= {1, 2}
