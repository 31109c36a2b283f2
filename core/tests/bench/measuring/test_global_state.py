"""Tests of what is looked at as global state."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from longca_bench.measuring.global_state import GlobalState
from longca_bench.measuring.keeping import workers_environment

#: Each sets a precision that no other one has set. PyTorch's older flags cannot be read any more after the first.
PRECISIONS = (
    "torch.backends.fp32_precision = 'tf32'",
    "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
    "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "torch.backends.cuda.matmul.fp32_precision = 'ieee'",
    "torch.backends.cudnn.allow_tf32 = False",
)
LOOKS = """
import json, sys, torch
from longca_bench.measuring.global_state import GlobalState
state, found = GlobalState(), []
for change in json.loads(sys.argv[1]):
    exec(change)
    found.append((state.changed(), state.changed()))
print(json.dumps(found))
"""


def test_a_precision_is_named_by_whatever_flag_it_is_set() -> None:
    command = [sys.executable, "-W", "error", "-c", LOOKS, json.dumps(PRECISIONS)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [[["float32 precision"], []]] * len(PRECISIONS)


#: What libraries may do when they are imported, and what they may not, with the name of what changes.
MAY = """
os.environ["CUTE_DSL_ARCH"] = "sm_90a"
sys.path.append("/opt/kernels")
warnings.filterwarnings("ignore", category=FutureWarning)
signal.signal(signal.SIGUSR1, lambda *_: None)
sys.setrecursionlimit(sys.getrecursionlimit() + 1)
sys.set_int_max_str_digits(0)
random.seed(3)
np.random.seed(3)
torch.manual_seed(3)
np.seterr(all="ignore")
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
MAY_NOT = {
    "torch.set_default_dtype(torch.float64)": ["default dtype"],
    "torch.set_num_threads(torch.get_num_threads() + 1)": ["threads of torch"],
    "torch._C._set_grad_enabled(False)": ["grad mode"],
    "torch.set_float32_matmul_precision('high')": ["float32 precision"],
    "torch.backends.cudnn.benchmark = True": ["deterministic algorithms"],
    "torch.backends.cuda.enable_cudnn_sdp(False)": ["backends of attention"],
    "torch.backends.mkldnn.enabled = False": ["backends of torch"],
    "torch.backends.mha.set_fastpath_enabled(False)": ["backends of torch"],
    "os.chdir('/')": ["working directory"],
    "gc.disable()": ["garbage collector"],
    "os.environ['LATER'] = '1'; os.nice(1)": ["priority"],
}
IMPORTS = """
import gc, json, os, random, signal, sys, threading, warnings
import numpy as np, torch
from longca_bench.measuring.global_state import GlobalState
found = []
for change in json.loads(sys.argv[1]):
    state = GlobalState()
    exec(change)
    found.append(state.changed_by_import())
print(json.dumps(found))
"""


def test_an_import_may_set_up_its_library_and_change_nothing_of_others(tmp_path) -> None:
    command = [sys.executable, "-c", IMPORTS, json.dumps([MAY, *MAY_NOT])]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [[], *MAY_NOT.values()]


#: PyTorch's pool of compilers is begun by a first call, and answers in a timed one.
LATE_POOL = """
from torch._inductor import config
config.compile_threads = 2
from torch._inductor.async_compile import AsyncCompile
from longca_bench.measuring.global_state import GlobalState
AsyncCompile.warm_pool()
pool = AsyncCompile.process_pool()
state = GlobalState()
pool.submit(AsyncCompile._get_ready).result(timeout=200)
print(state.changed(threads=True))
"""


@pytest.mark.parametrize("is_worker", [True, False])
def test_a_pool_of_compilers_that_answers_late_starts_no_thread_in_a_worker(is_worker, tmp_path) -> None:
    environment = {**workers_environment(), "TORCH_WARM_POOL": "0", "TORCHINDUCTOR_WORKER_START": "subprocess"}
    if not is_worker:
        environment["TORCHINDUCTOR_QUIESCE_ASYNC_COMPILE_POOL"] = "1"  # as newer versions of PyTorch have it
    command = [sys.executable, "-c", LATE_POOL]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split("\n")[0] == ("[]" if is_worker else "['threads']")


def test_names_of_many_changes_are_few_and_short(monkeypatch) -> None:
    state = GlobalState()
    for number in range(100):
        monkeypatch.setenv(f"{number:03}\x1b" + 500 * "x", "")
    names = state.changed()
    assert (len(names), names[-1]) == (41, "and 60 more")
    assert max(map(len, names)) <= 40
    assert not any("\x1b" in name for name in names)
