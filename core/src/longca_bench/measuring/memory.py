"""Memory on a CUDA device that two processes share, by the driver's own functions, and the end of a memory.

PyTorch shares whole segments of its allocator, with whatever else lies in them, and keeps them while a process that was
killed has not returned them. An allocation of the driver is one tensor's alone, and its owner frees it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

__all__ = ["allocate", "close", "export", "is_device_lost", "is_exhausted", "open_exported", "release"]

_HANDLE = 64  # bytes of a CUipcMemHandle
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
#: NCCL's words for any error of CUDA. It takes buffers of some hundred megabytes when ranks first exchange data.
_OF_NCCL, _BUFFERS = "unhandled cuda error", 2**30


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_byte * _HANDLE),)


def allocate(nbytes: int) -> int:
    """The address of new memory on the current device. A full one is a `torch.OutOfMemoryError`."""
    address = ctypes.c_uint64()
    code = _driver().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes))
    if code == _OUT_OF_MEMORY:
        torch.cuda.empty_cache()
        code = _driver().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes))
    if code == _OUT_OF_MEMORY:
        free, total = torch.cuda.mem_get_info()
        raise torch.OutOfMemoryError(f"{nbytes} bytes do not fit: {free} of the device's {total} bytes are free")
    _check(code, "cuMemAlloc")
    return int(address.value)


def release(address: int) -> None:
    """Frees memory that `allocate` returned."""
    torch.cuda.synchronize()
    _check(_driver().cuMemFree_v2(ctypes.c_uint64(address)), "cuMemFree")


def export(address: int) -> bytes:
    """The handle by which another process opens memory."""
    handle = _Handle()
    _check(_driver().cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(address)), "cuIpcGetMemHandle")
    return bytes(handle.reserved)


def open_exported(handle: bytes) -> int:
    """The address of another process's memory in this process, by its handle."""
    there = _Handle.from_buffer_copy(handle)
    address = ctypes.c_uint64()
    code = _driver().cuIpcOpenMemHandle_v2(ctypes.byref(address), there, ctypes.c_uint(_LAZY_PEER_ACCESS))
    _check(code, "cuIpcOpenMemHandle")
    return int(address.value)


def close(address: int) -> None:
    """Closes memory that `open_exported` returned."""
    torch.cuda.synchronize()
    _check(_driver().cuIpcCloseMemHandle(ctypes.c_uint64(address)), "cuIpcCloseMemHandle")


def is_exhausted(error: BaseException, text: str) -> bool:
    """Whether an error with a text says that its process has no memory left.

    NCCL does not say which error of CUDA it met. It met this one, if the device has no room for NCCL's buffers.
    """
    # PyTorch has these words if a CPU's memory is out.
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text:
        return True
    return _OF_NCCL in text.lower() and _is_full()


def is_device_lost() -> bool:
    """Whether this process's CUDA context can do nothing more, as after an illegal memory access."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return True
    return False


def _is_full() -> bool:
    try:
        return torch.cuda.mem_get_info()[0] < _BUFFERS
    except RuntimeError:  # the context is lost
        return False


def _driver() -> Any:
    """The driver's library. The context of the thread's current device is current afterwards."""
    torch.cuda.current_stream().synchronize()
    torch.empty(1, device="cuda")
    return _library()


@cache
def _library() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _check(code: int, what: str) -> None:
    if code:
        raise RuntimeError(f"{what} failed with CUDA's error {code}")
