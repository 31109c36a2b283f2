"""Global state: what a kernel could change for every later call of its process, and the names of what it changed."""

from __future__ import annotations

import ctypes
import gc
import locale
import os
import random
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from longca.plain_text import plain_text

__all__ = ["GlobalState"]

#: Where libraries note the folder of their cache, in their first call.
_CACHES = b"CACHE_DIR"
#: The most names of changed states, and the most characters of each. A variable's name may be anything.
_NAMED, _LONGEST = 40, 40
_LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
_KINDS = ("cpu", "cuda")
_SIGNALS = sorted(map(int, signal.valid_signals()))
#: The state that an import must leave alone, because it changes the results or the time of other code.
_NO_IMPORTS = (
    "default dtype",
    "default device",
    "threads of torch",
    "grad mode",
    "autocast",
    "deterministic algorithms",
    "anomaly mode",
    "float32 precision",
    "precision flags",
    "backends of attention",
    "backends of torch",
    "dispatch modes",
    "current device",
    "current stream",
    "working directory",
    "affinity",
    "priority",
    "scheduling policy",
    "garbage collector",
)


class GlobalState:
    """The global state of this process at the moment of the last look."""

    def __init__(self) -> None:
        self._values, self._environment, self._threads = _look()
        self._native, self._of_threads = _native_environment(), _of_threads()

    def changed(self, *, threads: bool = False, sets_up: bool = False) -> list[str]:
        """Looks again, and returns the names of what has changed since the last look.

        Args:
            threads: Whether threads that have begun since, and still run, count. Compilers start threads in a first
                call.
            sets_up: Whether libraries may be imported or compile in between. The filters of warnings, the limits of
                recursion and digits and the variables that they set are put back then, and do not count. Variables
                that they set without Python do not count either.
        """
        if sets_up:
            self._put_back()
        (values, environment, alive), native, of_threads = _look(), _native_environment(), _of_threads()
        names = [name for name, value in values.items() if value != self._values[name]]
        variables = {*_changed_variables(self._environment, environment)}
        if not sets_up:
            variables |= {*_changed_variables(self._native, native)}
        names += [f"environment: {name.decode('utf-8', 'replace')}" for name in sorted(variables)]
        if any(about != self._of_threads.get(thread, about) for thread, about in of_threads.items()):
            names.append("affinity or priority of a thread")
        if threads and alive - self._threads:
            names.append("threads")
        self._values, self._environment, self._threads = values, environment, alive
        self._native, self._of_threads = native, of_threads
        if len(names) > _NAMED:
            names[_NAMED:] = [f"and {len(names) - _NAMED} more"]
        return [plain_text(name, _LONGEST) for name in names]

    def changed_by_import(self) -> list[str]:
        """The names of what an import has changed since the last look, and must not change.

        When honest libraries are imported, they set variables, folders to import from, filters of warnings, handlers
        of signals, limits and seeds. A library may need these later, so they stay as they are, and do not count.
        """
        return [name for name in _NO_IMPORTS if _LOOKS[name]() != self._values[name]]

    def _put_back(self) -> None:
        if warnings.filters != (filters := self._values["warnings filters"]):
            warnings.filters[:] = filters  # type: ignore[index]  # a list, whatever its annotation says
            warnings._filters_mutated()  # type: ignore[attr-defined]  # else warnings go by what was found before
        if sys.getrecursionlimit() != (limit := self._values["recursion limit"]):
            sys.setrecursionlimit(limit)
        if sys.get_int_max_str_digits() != (digits := self._values["digits of integers"]):
            sys.set_int_max_str_digits(digits)
        for name in list(_changed_variables(self._environment, dict(os.environb))):
            if (value := self._environment.get(name)) is None:
                del os.environb[name]
            else:
                os.environb[name] = value


def _look() -> tuple[dict[str, Any], dict[bytes, bytes], set[threading.Thread]]:
    return {name: look() for name, look in _LOOKS.items()}, dict(os.environb), set(threading.enumerate())


def _changed_variables(before: dict[bytes, bytes], now: dict[bytes, bytes]) -> Iterator[bytes]:
    for name in sorted(before.keys() | now.keys()):
        if now.get(name) != before.get(name) and not name.endswith(_CACHES):
            yield name


def _native_environment() -> dict[bytes, bytes]:
    """The environment as C sees it. A library may set a variable without Python."""
    found, number = dict[bytes, bytes](), 0
    with suppress(ValueError):  # it is not there: the system has another name for it, or a library has cleared it
        place = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
        while (pair := place[number]) is not None:
            name, _, value = pair.partition(b"=")
            found[name], number = value, number + 1
    return found


def _of_threads() -> dict[int, tuple[set[int], int]]:
    """The cores and the priority of each thread of this process that is not the first one."""
    found, threads = dict[int, tuple[set[int], int]](), list[str]()
    with suppress(OSError):  # a kernel has left no descriptor
        threads = os.listdir("/proc/self/task")
    for thread in map(int, threads):
        with suppress(OSError):  # it has ended
            found[thread] = os.sched_getaffinity(thread), os.getpriority(os.PRIO_PROCESS, thread)
    found.pop(os.getpid(), None)  # it has findings of its own
    return found


def _signal_handlers() -> list[Any]:
    return [signal.getsignal(number) for number in _SIGNALS]


def _current_stream() -> int:
    return torch.cuda.current_stream().cuda_stream if torch.cuda.is_initialized() else 0


def _current_device() -> int:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0


def _random_state_of_torch() -> bytes:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return b"".join(state.numpy().tobytes() for state in states)


def _random_state_of_numpy() -> bytes:
    state = np.random.get_state(legacy=False)
    return repr(state["state"]["pos"]).encode() + state["state"]["key"].tobytes()


def _float32_precision() -> list[str]:
    """The precision of every backend. The older flags raise once a program has set one of these."""
    every: Any = torch.backends
    cuda, cudnn, mkldnn = every.cuda, every.cudnn, every.mkldnn
    backends = (every, cuda.matmul, cudnn, cudnn.conv, cudnn.rnn, mkldnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
    return [str(backend.fp32_precision) for backend in backends]


def _precision_flags() -> tuple[bool, ...]:
    return (
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        getattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", False),  # of PyTorch 2.7
    )


def _backends() -> tuple[bool, ...]:
    backends = torch.backends
    return bool(backends.mkldnn.enabled), backends.cudnn.enabled, backends.mha.get_fastpath_enabled()


def _attention_backends() -> tuple[bool, ...]:
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None  # it was removed


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _streams() -> tuple[int, ...]:
    return id(sys.stdin), id(sys.stdout), id(sys.stderr)


_LOOKS: dict[str, Callable[[], Any]] = {
    "default dtype": torch.get_default_dtype,
    "default device": lambda: str(torch.get_default_device()),
    "threads of torch": torch.get_num_threads,
    "grad mode": lambda: (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
    "autocast": lambda: [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _KINDS],
    "deterministic algorithms": lambda: (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    ),
    "anomaly mode": torch.is_anomaly_enabled,
    "float32 precision": _float32_precision,
    "precision flags": _precision_flags,
    "backends of attention": _attention_backends,
    "backends of torch": _backends,
    "errors of numpy": np.geterr,
    "flush of denormals": lambda: float("1e-310") * 0.5 == 0.0,
    "random state of torch": _random_state_of_torch,
    "random state of random": random.getstate,
    "random state of numpy": _random_state_of_numpy,
    "dispatch modes": lambda: (len(_get_current_dispatch_mode_stack()), torch._C._len_torch_function_stack()),
    "current device": _current_device,
    "current stream": _current_stream,
    "working directory": _working_directory,
    "signal handlers": _signal_handlers,
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    "timers": lambda: signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0),
    "affinity": lambda: os.sched_getaffinity(0),
    "priority": lambda: os.getpriority(os.PRIO_PROCESS, 0),
    "scheduling policy": lambda: os.sched_getscheduler(0),
    "resource limits": lambda: [resource.getrlimit(limit) for limit in _LIMITS],
    "umask": _umask,
    "locale": lambda: locale.setlocale(locale.LC_ALL),
    "recursion limit": sys.getrecursionlimit,
    "digits of integers": sys.get_int_max_str_digits,
    "warnings filters": lambda: list(warnings.filters),
    "sys.path": lambda: list(sys.path),
    "garbage collector": lambda: (gc.isenabled(), gc.get_threshold()),
    "switch interval": sys.getswitchinterval,
    "standard streams": _streams,
    "trace function": lambda: (sys.gettrace(), sys.getprofile()),
}
