"""Arenas: memory that a process shares with its workers, and the tensors in it.

On CPUs a block is an anonymous file (memfd) of a fixed size. On CUDA devices it is an allocation of its own with an IPC
handle, so no other tensor of this process can be reached through it. A block without tensors is used again for the next
tensor of its size, so workers keep their mappings.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longca_bench.measuring import memory

__all__ = ["Arena", "Block", "Where", "shared_file", "tensor_at"]

_GRAIN = {"cpu": 2**12, "cuda": 2**21}


@dataclass(frozen=True)
class Where:
    """The place of a tensor in shared memory: the block's number, and offset and strides in elements."""

    block: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Block:
    """A piece of shared memory: an `mmap` with a descriptor, or an address on a CUDA device with an IPC handle."""

    number: int
    nbytes: int
    device: torch.device
    fd: int = -1
    handle: bytes = b""
    memory: Any = None


class Arena:
    """Shared memory of one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._blocks: dict[int, Block] = {}  # by the address of their first byte
        self._free: dict[int, list[Block]] = defaultdict(list)
        self._made = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, free ones too."""
        return sum(block.nbytes for block in self._blocks.values())

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...] | None = None) -> Tensor:
        """A new tensor with any values. It is contiguous without strides. A full device is an OutOfMemoryError."""
        strides = stride if stride is not None else tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        last = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        block = self._block(max(1, last * dtype.itemsize))
        return _view(self._leased(block), Where(block.number, 0, shape, strides, dtype), self.device)

    def like(self, tensor: Tensor, fill: float | None = None) -> Tensor:
        """A new contiguous tensor with the shape and dtype of another one, filled or with any values."""
        made = self.empty(tuple(tensor.shape), tensor.dtype)
        return made if fill is None else made.fill_(fill)

    def clone(self, tensor: Tensor) -> Tensor:
        """A copy with the same strides. Gaps between the elements are NaN."""
        stride = tuple(tensor.stride())
        made = self.empty(tuple(tensor.shape), tensor.dtype, stride)
        if not tensor.is_contiguous() and tensor.is_floating_point():
            torch.empty(0, dtype=tensor.dtype, device=self.device).set_(made.untyped_storage()).fill_(torch.nan)
        return made.copy_(tensor)

    def block_of(self, tensor: Tensor) -> Block | None:
        """The block in which a tensor lies, or None if it is not shared."""
        return self._blocks.get(tensor.untyped_storage().data_ptr())

    def where(self, tensor: Tensor) -> Where:
        """The place of a shared tensor."""
        block = self.block_of(tensor)
        assert block is not None, "only shared tensors have a place"
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        return Where(block.number, int(tensor.storage_offset()), shape, stride, tensor.dtype)

    def trim(self) -> None:
        """Gives free blocks back. Workers must have closed them before."""
        for block in [block for blocks in self._free.values() for block in blocks]:
            del self._blocks[_address(block)]
            _release(block)
        self._free.clear()

    @property
    def unused(self) -> list[int]:
        """Numbers of the blocks that `trim` would give back."""
        return [block.number for blocks in self._free.values() for block in blocks]

    @property
    def unused_bytes(self) -> int:
        """Bytes that `trim` would give back."""
        return sum(size * len(blocks) for size, blocks in self._free.items())

    def _block(self, nbytes: int) -> Block:
        grain = _GRAIN[self.device.type]
        size = -(-nbytes // grain) * grain
        if self._free[size]:
            return self._free[size].pop()
        self._made += 1
        block = Block(self._made, size, self.device)
        if self.device.type == "cuda":
            block.memory = memory.allocate(size)
            block.handle = memory.export(block.memory)
        else:
            block.fd = shared_file("longca", size)
            block.memory = mmap.mmap(block.fd, size)
        self._blocks[_address(block)] = block
        return block

    def _leased(self, block: Block) -> torch.UntypedStorage:
        """A storage over a block. The block is free again when the storage is gone."""
        lease = _lease(block)
        weakref.finalize(lease, self._free[block.nbytes].append, block)
        return _storage(lease, self.device)


def shared_file(name: str, nbytes: int) -> int:
    """The descriptor of an anonymous file, which a child opens by `/proc/PID/fd`."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(fd, nbytes)
    return fd


def tensor_at(block: Block, where: Where) -> Tensor:
    """A new tensor over a block that another process has shared."""
    return _view(_storage(_lease(block), block.device), where, block.device)


class _OnDevice:
    """A block on a CUDA device in the form that torch takes."""

    def __init__(self, block: Block) -> None:
        about = {"shape": (block.nbytes,), "typestr": "|u1", "data": (block.memory, False), "version": 3}
        self.__cuda_array_interface__ = about


def _lease(block: Block) -> Any:
    return _OnDevice(block) if block.device.type == "cuda" else memoryview(block.memory)


def _storage(lease: Any, device: torch.device) -> torch.UntypedStorage:
    if device.type == "cuda":
        return torch.as_tensor(lease, device=device).untyped_storage()
    return torch.frombuffer(lease, dtype=torch.uint8).untyped_storage()


def _view(storage: torch.UntypedStorage, where: Where, device: torch.device) -> Tensor:
    made = torch.empty(0, dtype=where.dtype, device=device)
    return made.set_(storage, where.offset, where.shape, where.stride)


def _address(block: Block) -> int:
    if block.device.type == "cuda":
        return int(block.memory)
    return torch.frombuffer(block.memory, dtype=torch.uint8).data_ptr()


def _release(block: Block) -> None:
    if block.device.type == "cuda":
        memory.release(block.memory)
    else:
        block.memory.close()
        os.close(block.fd)
