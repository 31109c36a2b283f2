"""FlashAttention-4's `mask_mod`s without its compiler: Python integers replace its numbers, in real memory."""

import ctypes
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest

MODS = ("fragment_mod", "interval_mod", "block_mod")


class Int32(int):
    width, read = 32, ctypes.c_int32


class Int64(int):
    width, read = 64, ctypes.c_int64


class Uint8(int):
    width, read = 8, ctypes.c_uint8


class Uint32(int):
    width, read = 32, ctypes.c_uint32

    def __new__(cls, number):
        return super().__new__(cls, number & 0xFFFFFFFF)


class Pointer:
    """A typed address in memory."""

    def __init__(self, dtype, address):
        self.dtype, self.address = dtype, address

    def __add__(self, numbers):
        return Pointer(self.dtype, self.address + numbers * self.dtype.width // 8)

    def __getitem__(self, index):
        return self.dtype.read.from_address((self + index).address).value


class BlockSparseTensors(NamedTuple):
    """The fields that `BlockSparseTensorsTorch` has under the same names."""

    mask_block_cnt: object
    mask_block_idx: object
    full_block_cnt: object
    full_block_idx: object
    block_size: tuple


class Vector(list):
    """Numbers that were loaded from memory."""

    def load(self):
        return self


@pytest.fixture
def traced(monkeypatch):
    """Imports a module of `mask_mod`s with `cutlass` and `flash_attn` replaced by arithmetic in Python."""
    cute = SimpleNamespace(
        jit=lambda function: function,
        make_ptr=lambda dtype, address, space, assumed_align: Pointer(dtype, address),
        make_layout=lambda length: length,
        make_tensor=lambda pointer, length: Vector(pointer[index] for index in range(length)),
        AddressSpace=SimpleNamespace(gmem=None),
    )
    numbers = {"Int32": Int32, "Int64": Int64, "Uint8": Uint8, "Uint32": Uint32, "Boolean": bool}
    modules = {
        "cutlass": {
            **numbers,
            "cute": cute,
            "max": max,
            "min": min,
            "range": lambda start, stop, unroll: range(start, stop),
        },
        "flash_attn": {},
        "flash_attn.cute": {},
        "flash_attn.cute.utils": {
            "scalar_to_ssa": lambda value, dtype: value,
            "shl_u32": lambda value, shift: (value << shift) & 0xFFFFFFFF if shift < 32 else 0,
        },
        "flash_attn.cute.block_sparsity": {"BlockSparseTensorsTorch": BlockSparseTensors},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    names = [f"longca_flashattn.{name}" for name in MODS]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield lambda name: importlib.import_module(f"longca_flashattn.{name}")
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def asked_as_in_the_kernel():
    """The answers of a `mask_mod` for a tile, as bool rows of queries. The threads of the sm90 kernels ask in turn.

    The order of the calls and the columns of a thread are those of flash-attn-4 4.0.0b36. A thread has two tokens eight
    apart and two of every eight columns, with queries outermost.
    """
    return _tile


def _tile(mod, scalars, head, first_query, first_key, size, *, by_key):
    seen = {}
    own, other = (first_key, first_query) if by_key else (first_query, first_key)
    height, width = size[::-1] if by_key else size
    for token in (own + 16 * group + row for group in range(height // 16) for row in range(8)):
        for lane in range(4):
            owners = (token, token + 8)
            columns = [other + 2 * lane + 8 * (i // 2) + i % 2 for i in range(width // 4)]
            pairs = [(c, o) for c in columns for o in owners] if by_key else [(o, c) for o in owners for c in columns]
            for query, key in pairs:
                seen[query, key] = bool(mod([0], [head], [query], [key], None, None, scalars))
    return [[seen[first_query + i, first_key + j] for j in range(size[1])] for i in range(size[0])]
