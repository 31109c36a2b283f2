"""One device is a world of size 1, and needs nothing of torch.distributed."""

import subprocess
import sys

CODE = """
import gc, sys, torch
from longca import plugins
from longca.manifests import Device
from longca_bench.measuring.bench import Bench
from longca_bench.measuring.messages import Setup
from longca_bench.measuring.world import Instruments, Phases
from longca_bench.measuring.worker import Workers
from longca_bench.measuring.world import World
from longca_bench.suites.cases import Selection, expand
from longca_bench.suites.suite import load_suite
from longca_bench.suites.tasks import task_of

registry, device = plugins.Registry(), Device("cpu")
cases = expand(load_suite("quick"), ["sdpa"], Selection(patterns=("causal",), seqlens=(64,)))
phases = []
cpu = torch.device("cpu")
workers = Workers(cpu)
bench = Bench(Setup(device, frozenset({64})), Instruments(World(cpu), workers, Phases(phases.append), 0.0))
gc.disable()  # a GPU is full long before it runs
results = [bench.measure(task_of(registry, case, device)) for case in cases]
assert 0 < workers.arena.unused_bytes == workers.arena.nbytes, "a case keeps shared memory"
assert [result.status for result in results] == ["ok", "ok"], results
assert not results[0].fields.get("rank_samples"), "the fields of ranks are for ranks"
begun = [phase for phase, before in zip(phases, [None, *phases]) if phase != before]  # a busy machine is timed twice
assert begun == 2 * ["inputs", "start", "load", "plan", "verify", "time", "verify again"], phases
workers.close()
assert not torch.distributed.is_initialized()
print(sorted(name for name in sys.modules if name.startswith(("longca_bench.ranks", "longca_bench.measuring.traffic"))))
"""


def test_one_device_imports_nothing_of_ranks(monkeypatch):
    monkeypatch.setenv("LONGCA_PLUGINS", "")
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "[]\n"), ran.stderr
