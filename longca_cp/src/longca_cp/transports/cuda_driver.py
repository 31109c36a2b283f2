"""The calls of the CUDA driver that PyTorch does not have: strided copies, and counters that streams write and await.

The order of two streams is here too, because PyTorch's own calls for it take the host several times as long. Copies and
counters run without a kernel, so they take no multiprocessors. A write to a counter comes after all earlier work of its
stream and a memory fence of the whole system.

Source: the reference of the CUDA driver API, "Memory Management" and "Stream Memory Operations".
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import torch

from longca.errors import LongCAError
from longca_cp.transports.strided import Copy

__all__ = ["Driver"]

#: CU_MEMORYTYPE_UNIFIED: addresses of any device.
_UNIFIED = 4
#: Waits until the counter is at least the value, in the sense of a signed difference.
_AT_LEAST = 0
#: CU_EVENT_DISABLE_TIMING.
_WITHOUT_TIME = 2


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [
        (f"{side}_{name}", kind)
        for side in ("source", "into")
        for name, kind in (
            ("x", c_size_t),
            ("y", c_size_t),
            ("memory", c_int),
            ("host", c_void_p),
            ("device", c_uint64),
            ("array", c_void_p),
            ("pitch", c_size_t),
        )
    ] + [("width", c_size_t), ("height", c_size_t)]


class Driver:
    """The driver's calls for one CUDA device. A missing or old driver raises a `LongCAError`."""

    def __init__(self, device: torch.device) -> None:
        try:
            library = ctypes.CDLL("libcuda.so.1")
            self._copy, self._copy_2d = library.cuMemcpyAsync, library.cuMemcpy2DAsync_v2
            self._write, self._await = library.cuStreamWriteValue64_v2, library.cuStreamWaitValue64_v2
            self._push, self._pop = library.cuCtxPushCurrent_v2, library.cuCtxPopCurrent_v2
            self._present = library.cuCtxGetCurrent
            self._record, self._follow = library.cuEventRecord, library.cuStreamWaitEvent
            create, destroy = library.cuEventCreate, library.cuEventDestroy_v2
            self._address, self._explain = library.cuMemHostGetDevicePointer_v2, library.cuGetErrorString
            retain = library.cuDevicePrimaryCtxRetain
        except (OSError, AttributeError) as error:
            raise LongCAError(
                f"the CUDA driver has no copies between ranks: {error}; it must be 12.0 or newer"
            ) from None
        torch.cuda.init()
        self._context = c_void_p()
        number = c_int()
        self._check(library.cuDeviceGet(byref(number), c_int(device.index)))
        self._check(retain(byref(self._context), number))
        self._moment = c_void_p()
        with self._current():
            self._check(create(byref(self._moment), c_uint(_WITHOUT_TIME)))
        weakref.finalize(self, destroy, self._moment).atexit = False

    def copy(self, copies: Sequence[Copy], into: int, source: int, stream: int) -> None:
        """Makes copies, which count from two addresses that this device reaches, in the order of a stream."""
        with self._current():
            for copy in copies:
                there, here = into + copy.into, source + copy.source
                if copy.height == 1:
                    where = c_uint64(there), c_uint64(here)
                    self._check(self._copy(*where, c_size_t(copy.width), c_void_p(stream)))
                else:
                    read = 0, 0, _UNIFIED, None, here, None, copy.source_pitch
                    write = 0, 0, _UNIFIED, None, there, None, copy.into_pitch
                    asked = _Copy2D(*read, *write, copy.width, copy.height)
                    self._check(self._copy_2d(byref(asked), c_void_p(stream)))

    def follow(self, later: int, earlier: int) -> None:
        """Lets later work of one stream come after everything that another was given so far."""
        with self._current():
            self._check(self._record(self._moment, c_void_p(earlier)))
            self._check(self._follow(c_void_p(later), self._moment, c_uint(0)))

    def write(self, address: int, value: int, stream: int) -> None:
        """Writes a counter after everything that a stream was given so far."""
        with self._current():
            self._check(self._write(c_void_p(stream), c_uint64(address), c_uint64(value), c_uint(0)))

    def wait(self, address: int, value: int, stream: int) -> None:
        """Makes a stream wait until a counter is at least a value."""
        with self._current():
            self._check(self._await(c_void_p(stream), c_uint64(address), c_uint64(value), c_uint(_AT_LEAST)))

    def address(self, host: int) -> int:
        """The address by which the device reaches registered memory of the host."""
        found = c_uint64()
        with self._current():
            self._check(self._address(byref(found), c_void_p(host), c_uint(0)))
        return found.value

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Makes the device's context the thread's one. A thread of autograd may have none."""
        now = c_void_p()
        self._check(self._present(byref(now)))
        if now.value == self._context.value:  # much faster than a push and a pop
            yield
            return
        self._check(self._push(self._context))
        try:
            yield
        finally:
            self._pop(byref(c_void_p()))

    def _check(self, status: int) -> None:
        if status:
            text = ctypes.c_char_p()
            self._explain(c_int(status), byref(text))
            raise LongCAError(f"the CUDA driver says: {(text.value or b'unknown').decode()} (error {status})")
