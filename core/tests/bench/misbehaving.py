"""Kernels that misbehave, each in one respect, and kernels that do odd things and are right.

`TABLE` says what the record of each must say. `misbehaving_plugins` writes distributions that provide them, so that a
run finds them as any kernel. A kernel misbehaves in one direction, and is right in the other. Its name ends with
`_backward` if that is the backward.
"""

import ctypes
import gc
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from longca.kernels.base import fill, nothing_seen
from longca.manifests import Backward, KernelManifest, Offer
from longca.masks import Form, Slice, SliceMask
from longca_builtin.naive import Naive

#: Seconds after which a late kernel writes.
LATE = 0.3


@dataclass(frozen=True)
class Call:
    """One call: its inputs, its plan, the caller's buffers, and a function that computes right results."""

    inputs: tuple
    plan: object
    buffers: tuple
    compute: object

    def right(self):
        """The right results, in new tensors."""
        return self.compute(*self.inputs)

    def empty(self):
        """New tensors for the results. Nothing is written to them."""
        if len(self.inputs) == 3:
            return torch.empty_like(self.inputs[0]), torch.empty_like(nothing_seen(self.inputs[0]))
        return tuple(map(torch.empty_like, self.inputs[1:4]))

    def fill(self, results):
        """The results, copied into the buffers."""
        return tuple(fill(buffer, result) for buffer, result in zip(self.buffers, results, strict=True))


class Kernel(Naive):
    """A kernel that is right. `memory` is what it keeps between calls, and `calls` counts those of its direction."""

    is_backward = False

    def __init__(self):
        self.memory, self.calls = {}, 0

    def plan(self, problem):
        plan = super().plan(problem)
        plan.form = Form.ROW_INTERVALS
        return plan

    def forward(self, q, k, v, plan, **buffers):
        base = super()
        call = Call((q, k, v), plan, (buffers.get("out"), buffers.get("lse")), lambda *x: base.forward(*x, plan))
        return self._answer(call, is_mine=not self.is_backward)

    def backward(self, dout, q, k, v, out, lse, plan, **buffers):
        base = super()
        given = tuple(buffers.get(name) for name in ("dq", "dk", "dv"))
        call = Call((dout, q, k, v, out, lse), plan, given, lambda *x: base.backward(*x, plan))
        return self._answer(call, is_mine=self.is_backward)

    def _answer(self, call, *, is_mine):
        if not is_mine:
            return call.fill(call.right())
        self.calls += 1
        return self.answer(call)

    def answer(self, call):
        return call.fill(self.results(call))

    def results(self, call):
        return call.right()


@dataclass(frozen=True)
class Row:
    """A kernel, the status of its record, and a regular expression that its message has."""

    name: str
    kernel: type
    status: str
    says: str = ""
    device: str = ""

    @property
    def direction(self):
        return "backward" if self.name.endswith("_backward") else "forward"


def computes(results):
    """A kernel that puts a function of itself and the call into the buffers."""
    return type("Misbehaving", (Kernel,), {"results": results})


def answers(answer):
    """A kernel that returns a function of itself and the call."""
    return type("Misbehaving", (Kernel,), {"answer": answer})


def beside(act):
    """A kernel that is right, and does something else in each call."""

    def results(kernel, call):
        right = call.right()
        act()
        return right

    return computes(results)


def once(act):
    """A kernel that is right, and does something else in its first call."""

    def results(kernel, call):
        if kernel.calls == 1:
            kernel.memory["kept"] = act()
        return call.right()

    return computes(results)


def backward(kernel):
    """The kernel that does in its backward as another one does in its forward."""
    return type("Misbehaving", (kernel,), {"is_backward": True})


def cached(key):
    """A kernel that computes once for each value of a key."""

    def results(kernel, call):
        found = key(call)
        if found not in kernel.memory:
            kernel.memory[found] = call.right()
        return kernel.memory[found]

    return computes(results)


def spoilt(spoil):
    """A kernel whose right results are changed in place."""

    def results(kernel, call):
        right = call.right()
        spoil(*right)
        return right

    return computes(results)


def once_if(condition):
    """A kernel that computes if a condition holds, and else repeats itself."""

    def results(kernel, call):
        if "last" not in kernel.memory or condition(kernel, call):
            kernel.memory["last"] = call.right()
        return kernel.memory["last"]

    return computes(results)


def one_late(kernel, call):
    """The results of the call before."""
    right = call.right()
    before, kernel.memory["before"] = kernel.memory.get("before", right), right
    return before


def unwritten_buffers(kernel, call):
    """The caller's buffers, to which nothing is written."""
    return call.fill(call.empty()) if None in call.buffers else call.buffers


def has_poison(kernel, call):
    """Whether the caller's buffer holds NaN."""
    return call.buffers[0] is not None and bool(call.buffers[0].isnan().any())


def rounded(dtype):
    """A kernel that rounds its inputs."""
    return computes(lambda kernel, call: call.compute(*(x.to(dtype).to(x.dtype) for x in call.inputs)))


def masked(change):
    """A kernel that computes with another mask."""

    def results(kernel, call):
        problem = call.plan.problem
        try:
            call.plan.problem = problem.with_mask(change(problem.concrete_mask))
            return call.right()
        finally:
            call.plan.problem = problem

    return computes(results)


def first_keys(mask):
    """The mask without its last 16 keys."""
    seen = mask.cut([(0, mask.seqlen_q)], [(0, mask.seqlen_k - 16)])
    return SliceMask([Slice(*each) for each in seen.slices], mask.seqlen_q, mask.seqlen_k)


def by_a_thread(kernel, call):
    """Zeros, which a thread replaces later."""
    results = call.fill(x.zero_() for x in call.empty())

    def write():
        time.sleep(LATE)
        for result, right in zip(results, call.right(), strict=True):
            result.copy_(right)

    threading.Thread(target=write).start()
    return results


def on_a_side_stream(kernel, call):
    """Zeros, which another stream replaces later. The current stream does not wait for it."""
    right = call.right()
    results = call.fill(x.zero_() for x in call.empty())
    aside = kernel.memory.setdefault("stream", torch.cuda.Stream())
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        torch.cuda._sleep(200_000_000)
        for result, value in zip(results, right, strict=True):
            value.record_stream(aside)
            result.record_stream(aside)
            result.copy_(value)
    return results


def doubles(number, first=1):
    """A kernel that doubles one of its inputs after it computed, from some call on."""

    def answer(kernel, call):
        results = call.fill(call.right())
        if kernel.calls >= first:
            call.inputs[number].mul_(2)
        return results

    return answers(answer)


def content(x):
    return x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def norm(x):
    return f"{float(x.detach().double().norm()):.9g}"


def hang():
    while True:
        time.sleep(60)


def take_the_device():
    taken = []
    while True:
        taken.append(torch.empty(2**30, dtype=torch.int8, device="cuda"))


def lose_the_context():
    torch.zeros(1, device="cuda")[torch.full((1,), 7, device="cuda")]
    torch.cuda.synchronize()


def print_megabytes():
    for _ in range(50):
        print("x" * 10**6)


OUT, GRADIENTS = r"\b(out|lse|counts)\b", r"\bd[qkv]\b"
MISBEHAVING = (
    # It computes nothing.
    Row("zeros", computes(lambda kernel, call: [x.zero_() for x in call.empty()]), "wrong", OUT),
    Row("unwritten", computes(lambda kernel, call: call.empty()), "wrong", OUT),
    Row("input_as_output", computes(lambda kernel, call: (call.inputs[0], call.right()[1])), "wrong", OUT),
    Row("view_of_input", answers(lambda kernel, call: (call.inputs[0][:], call.right()[1])), "wrong"),
    Row("inputs_as_gradients_backward", backward(computes(lambda kernel, call: call.inputs[1:4])), "wrong", GRADIENTS),
    Row("leaves_buffers", answers(unwritten_buffers), "wrong", OUT),
    # It gives an earlier answer.
    Row("cached_by_pointer", cached(lambda call: tuple(x.data_ptr() for x in call.inputs)), "wrong", OUT),
    Row("cached_by_version", cached(lambda call: tuple((x.data_ptr(), x._version) for x in call.inputs)), "wrong", OUT),
    Row("cached_by_shape_backward", backward(cached(lambda call: call.inputs[1].shape)), "wrong", GRADIENTS),
    Row("cached_by_keys", cached(lambda call: content(call.inputs[1])), "wrong", OUT),
    Row("cached_by_norms", cached(lambda call: tuple(map(norm, call.inputs))), "wrong", OUT),
    Row("until_the_sixth", once_if(lambda kernel, call: kernel.calls < 6), "wrong", OUT),
    Row("into_poison_only", once_if(has_poison), "wrong", OUT),
    Row("one_late", computes(one_late), "wrong", OUT),
    Row("one_in_three", computes(lambda self, call: [x + (self.calls % 3 == 0) for x in call.right()]), "wrong", OUT),
    # It leaves a part out, or is not exact.
    Row("skips_last_row", spoilt(lambda out, lse: out[-1].zero_()), "wrong", OUT),
    Row("skips_a_tile", spoilt(lambda out, lse: out[16:32].zero_()), "wrong", OUT),
    Row("skips_inner_heads", spoilt(lambda out, lse: out[:, 1:-1].zero_()), "wrong", OUT),
    Row("skips_last_keys", masked(first_keys), "wrong", OUT),
    Row("skips_dk_tile_backward", backward(spoilt(lambda dq, dk, dv: dk[:16].zero_())), "wrong", r"\bdk\b"),
    Row("half_of_dv_tile_backward", backward(spoilt(lambda dq, dk, dv: dv[16:32].div_(2))), "wrong", r"\bdv\b"),
    Row("slightly_off", spoilt(lambda out, lse: out.mul_(1.001)), "wrong", OUT),
    Row("slightly_off_lse", spoilt(lambda out, lse: lse.add_(0.001)), "wrong", r"\b(lse|counts)\b"),
    Row("in_bfloat16", rounded(torch.bfloat16), "wrong", OUT),
    Row("in_float16_backward", backward(rounded(torch.float16)), "wrong", GRADIENTS),
    # It breaks the contract.
    Row("returns_none", answers(lambda kernel, call: None), "wrong", "instead of a tuple"),
    Row("float64_out", answers(lambda kernel, call: ((right := call.right())[0].double(), right[1])), "wrong", OUT),
    Row("changes_queries", doubles(0), "wrong", r"\bq\b"),
    Row("changes_keys_later", doubles(1, first=6), "wrong", r"\bk\b"),
    Row("changes_dout_backward", backward(doubles(0)), "wrong", r"\bdout\b"),
    Row("late_thread", answers(by_a_thread), "wrong"),
    Row("default_dtype", beside(lambda: torch.set_default_dtype(torch.float64)), "wrong", "default dtype"),
    # It ends.
    Row("raises", beside(lambda: [][0]), "error", "IndexError"),
    Row("system_exit", beside(lambda: sys.exit(0)), "error", "SystemExit"),
    Row("exits", beside(lambda: os._exit(0)), "crashed", "code 0"),
    Row("segfaults", beside(lambda: ctypes.string_at(0)), "crashed", "SIGSEGV"),
    Row("takes_all_memory", beside(lambda: torch.empty(2**50, dtype=torch.int8)), "oom", "memory"),
    Row("hangs", beside(hang), "timeout"),
    # On a GPU alone.
    Row("side_stream", answers(on_a_side_stream), "wrong", OUT, "cuda"),
    Row("side_stream_backward", backward(answers(on_a_side_stream)), "wrong", GRADIENTS, "cuda"),
    Row("cpu_results", answers(lambda kernel, call: tuple(x.cpu() for x in call.right())), "wrong", OUT, "cuda"),
    Row("takes_all_gpu_memory", beside(take_the_device), "oom", "memory", "cuda"),
    Row("loses_context", beside(lose_the_context), "error", "device-side assert", "cuda"),
    Row("never_done", beside(lambda: torch.cuda._sleep(2**50)), "timeout", "", "cuda"),
)  # fmt: skip


class TunesInPlan(Kernel):
    """Times two variants when it plans."""

    def plan(self, problem):
        plan = super().plan(problem)
        x = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
        plan.seconds = [self._timed(x, times) for times in (1, 2)]
        return plan

    def _timed(self, x, times):
        start = time.perf_counter()
        for _ in range(times):
            x @ x
        return time.perf_counter() - start


class WarmsUp(Kernel):
    """Calls itself when it is made, and keeps a pool of threads."""

    def __init__(self):
        super().__init__()
        self.pool = ThreadPoolExecutor(2)
        self.pool.submit(sum, range(10)).result()

    def results(self, call):
        return self.pool.submit(call.right).result()


def workspaces(kernel, call):
    """The right results, by way of tensors that it keeps for each shape."""
    right = call.right()
    kept = kernel.memory.setdefault(tuple(x.shape for x in right), tuple(map(torch.empty_like, right)))
    return [mine.copy_(x) for mine, x in zip(kept, right, strict=True)]


def tune():
    """Takes a while, as autotuning in a first call does."""
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        torch.rand(64, 64, generator=torch.Generator()).square()


def with_other_threads(kernel, call):
    """The right results with one thread. The number of threads is as it was afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return call.right()
    finally:
        torch.set_num_threads(threads)


def in_another_folder(kernel, call):
    """The right results, from a temporary working folder, as a compiler may do."""
    here, folder = os.getcwd(), tempfile.mkdtemp()
    os.chdir(folder)
    try:
        return call.right()
    finally:
        os.chdir(here)
        shutil.rmtree(folder)


def leave_a_child():
    """A process that waits, as a pool of compilers does."""
    return subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)


def leave_a_thread():
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def keep_a_log():
    logging.getLogger("misbehaving").addHandler(logging.NullHandler())
    warnings.filterwarnings("ignore", message="nothing of note")


HONEST = tuple(
    Row(name, kernel, "ok")
    for name, kernel in {
        "right": Kernel,
        "sets_variable": once(lambda: os.environ.update(MY_KERNEL_CACHE="/tmp")),
        "sets_threads_variable": once(lambda: os.environ.update(OMP_NUM_THREADS="7")),
        "keeps_workspaces": computes(workspaces),
        "tunes_in_first_call": once(tune),
        "tunes_in_plan": TunesInPlan,
        "keeps_thread_pool": WarmsUp,
        "leaves_waiting_thread": once(leave_a_thread),
        "leaves_child": once(leave_a_child),
        "seeds_random": beside(lambda: random.seed(0)),
        "draws_from_torch": beside(lambda: torch.rand(1)),
        "draws_from_numpy": beside(lambda: np.random.rand(1)),
        "collects_garbage": beside(gc.collect),
        "stops_the_collector": once(gc.disable),
        "deeper_recursion": once(lambda: sys.setrecursionlimit(5000)),
        "longer_module_path": once(lambda: sys.path.insert(0, "/tmp")),
        "handles_a_signal": once(lambda: signal.signal(signal.SIGUSR1, lambda *_: None)),
        "other_threads_for_a_while": computes(with_other_threads),
        "other_folder_for_a_while": computes(in_another_folder),
        "keeps_a_log": once(keep_a_log),
        "imports_late": once(lambda: __import__("xml.dom.minidom")),
        "keeps_a_file_open": once(lambda: open("/dev/null", "rb")),  # noqa: SIM115
        "prints_megabytes": once(print_megabytes),
        "inference_mode_for_a_while": computes(lambda kernel, call: torch.inference_mode()(call.right)()),
    }.items()
)
TABLE = (*MISBEHAVING, *HONEST)
globals().update({f"kernel_{row.name}": row.kernel for row in TABLE})  # manifests name them

_PROVIDES = """
import json
from longca import KernelManifest, hookimpl

@hookimpl
def provide_kernel():
    return tuple(KernelManifest.model_validate(each) for each in json.loads({manifests!r}))
"""


def misbehaving_plugins(folder):
    """Writes two distributions into a folder: of misbehaving kernels, and of honest ones. Returns the folder."""
    folder = Path(folder)
    for name, rows in (("misbehaving-kernels", MISBEHAVING), ("honest-kernels", HONEST)):
        module = name.replace("-", "_")
        info = folder / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        manifests = json.dumps([_manifest(row).model_dump(mode="json", exclude_defaults=True) for row in rows])
        (folder / f"{module}.py").write_text(_PROVIDES.format(manifests=manifests), "utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
        (info / "entry_points.txt").write_text(f"[longca]\n{module} = {module}\n", "utf-8")
        (info / "RECORD").write_text(f"{module}.py,,\n", "utf-8")
    shutil.copy(__file__, folder / "misbehaving_table.py")
    return folder


def _manifest(row):
    about = {"unequal_lengths": True, "mask_heads": "query", "backward": Backward.EXTERNAL, "dtypes": ("float32",)}
    where = {"cpu": row.device != "cuda", "verified_on": ">=7.0", "metadata": "O(1)", "fills_buffers": False}
    return KernelManifest(
        name=row.name,
        title=row.name,
        family="misbehaving",
        upstream="https://example.org",
        license="Apache-2.0",
        implementation=f"misbehaving_table:kernel_{row.name}",
        offers=(Offer(form=Form.ROW_INTERVALS, **about, **where),),
    )
