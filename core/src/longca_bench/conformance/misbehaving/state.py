"""Kernels that are right, and change the state of their process in each call."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from longca.kernels.base import Plan
from longca.manifests import Problem
from longca_bench.conformance.misbehaving.honest import Call, Honest, backward, beside

__all__: list[str] = []  # manifests name the classes

#: Contexts that were entered. A context may end when nothing refers to it.
ENTERED: list[AbstractContextManager[Any]] = []


class PassOn(TorchDispatchMode):
    """A dispatch mode that changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the operator."""
        return func(*args, **(kwargs or {}))


def enter(context: AbstractContextManager[Any]) -> None:
    """Enters a context, and does not leave it."""
    context.__enter__()
    ENTERED.append(context)


def seed_numpy() -> None:
    """Seeds numpy's global generator."""
    np.random.seed(0)


def leave_a_thread() -> None:
    """Starts a thread that never ends."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def busy_thread() -> None:
    """Starts a thread that never rests."""

    def spin() -> None:
        while True:
            pass

    threading.Thread(target=spin, daemon=True).start()


def lower_a_limit() -> None:
    """Lets the process take less processor time than it might."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (3600 if soft == resource.RLIM_INFINITY else soft - 1, hard))


def lower_one_precision() -> None:
    """Lowers the precision of products on CPUs, which PyTorch's older flags do not show."""
    backends: Any = torch.backends
    backends.mkldnn.matmul.fp32_precision = "bf16"


def other_dtype(dtype: torch.dtype) -> torch.dtype:
    """Another dtype of 16 bits."""
    return torch.float16 if dtype is torch.bfloat16 else torch.bfloat16


class ChangesInPlan(Honest):
    """Changes the default dtype when it plans."""

    def plan(self, problem: Problem) -> Plan:
        """Plans."""
        torch.set_default_dtype(torch.float64)
        return super().plan(problem)


class SlowsThread(Honest):
    """Lowers the priority of a thread that its import may have started."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.Thread(target=threading.Event().wait, daemon=True)
        self._thread.start()

    def results(self, call: Call) -> Iterable[Tensor]:
        """Right results."""
        assert self._thread.native_id is not None
        os.setpriority(os.PRIO_PROCESS, self._thread.native_id, min(19, self.calls))
        return super().results(call)


DefaultDtype = beside(lambda: torch.set_default_dtype(torch.float64))
DefaultDtypeBackward = backward(DefaultDtype)
DefaultDevice = beside(lambda: torch.set_default_device("meta"))
Threads = beside(lambda: torch.set_num_threads(torch.get_num_threads() + 1))
GradMode = beside(lambda: torch._C._set_grad_enabled(not torch.is_grad_enabled()))
InferenceMode = beside(lambda: enter(torch.inference_mode()))
Deterministic = beside(lambda: torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled()))
MatmulPrecision = beside(lambda: torch.set_float32_matmul_precision("medium"))
OnePrecision = beside(lower_one_precision)
SeedsTorch = beside(lambda: torch.manual_seed(0))
DrawsFromTorch = beside(lambda: torch.rand(1))
SeedsRandom = beside(lambda: random.seed(0))
SeedsNumpy = beside(seed_numpy)
ThreadsVariable = beside(lambda: os.environ.update(OMP_NUM_THREADS="7"))
NativeVariable = beside(lambda: ctypes.CDLL(None).setenv(b"OMP_NUM_THREADS", str(time.time()).encode(), 1))
DevicesVariable = beside(lambda: os.environ.update(CUDA_VISIBLE_DEVICES=""))
ManyVariables = beside(lambda: os.environ.update({f"{n}" * 300: "" for n in range(100)}))
DropsPath = beside(lambda: os.environ.pop("PATH", None))
WorkingDirectory = beside(lambda: os.chdir("/"))
RemovesFolders = beside(lambda: shutil.rmtree(os.path.dirname(os.getcwd())))
ResourceLimits = beside(lower_a_limit)
BlockedSignals = beside(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}))
SchedulingPolicy = beside(lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)))
AttentionBackends = beside(lambda: torch.backends.cuda.enable_flash_sdp(not torch.backends.cuda.flash_sdp_enabled()))
TorchBackends = beside(lambda: setattr(torch.backends.mkldnn, "enabled", not bool(torch.backends.mkldnn.enabled)))
IntegerDigits = beside(lambda: sys.set_int_max_str_digits(sys.get_int_max_str_digits() + 1))
InterruptHandler = beside(lambda: signal.signal(signal.SIGINT, lambda *_: None))
AlarmHandler = beside(lambda: signal.signal(signal.SIGALRM, lambda *_: None))
Affinity = beside(lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
DispatchMode = beside(lambda: enter(PassOn()))  # type: ignore[no-untyped-call]
Umask = beside(lambda: os.umask(0o777))
RecursionLimit = beside(lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1))
ModulePath = beside(lambda: sys.path.insert(0, "/"))
CollectorOff = beside(gc.disable)
CollectorThresholds = beside(lambda: gc.set_threshold(gc.get_threshold()[0] + 1))
AutocastDtype = beside(lambda: torch.set_autocast_dtype("cpu", other_dtype(torch.get_autocast_dtype("cpu"))))
LeavesThread = beside(leave_a_thread)
LeavesBusyThread = beside(busy_thread)
