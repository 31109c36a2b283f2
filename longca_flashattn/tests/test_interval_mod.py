"""fa4's bit tests, traced with whole numbers in the place of the compiler's: what a thread finds is what is visible.

The order of the questions and the columns of a thread are those of the kernels for sm90 of flash-attn-4 4.0.0b36.
"""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from longca import masks
from longca.masks import Slice, SliceMask

MASKS = {
    "one interval": masks.build("causal_document", 384, documents=[100, 3, 281]),
    "two intervals": masks.build("shared_question", 384, documents=[70, 130, 1, 183]),
    "three intervals": SliceMask([Slice(0, 384, k, k + 40, -300, 200) for k in (3, 100, 222)], 384, 384),
}


class Memory:
    """A table of numbers, and a pointer into it."""

    def __init__(self, numbers, at=0):
        self.numbers, self.at = numbers, at

    def __add__(self, offset):
        return Memory(self.numbers, self.at + offset)


@pytest.fixture
def interval_mod(monkeypatch):
    """The module, with `cutlass` and `flash_attn` as arithmetic of Python."""
    cute = SimpleNamespace(
        make_ptr=lambda dtype, address, space, assumed_align: address,
        make_layout=lambda width: width,
        make_tensor=lambda pointer, width: SimpleNamespace(
            load=lambda: pointer.numbers[pointer.at : pointer.at + width]
        ),
        AddressSpace=SimpleNamespace(gmem=None),
    )
    cutlass = ModuleType("cutlass")
    vars(cutlass).update(Int32=int, Uint32=lambda x: x & 0xFFFFFFFF, cute=cute, max=max, min=min, Boolean=bool)
    utils = ModuleType("flash_attn.cute.utils")
    vars(utils).update(
        scalar_to_ssa=lambda value, dtype: value,
        shl_u32=lambda value, shift: (value << shift) & 0xFFFFFFFF if shift < 32 else 0,
    )
    for name, module in (("cutlass", cutlass), ("flash_attn", ModuleType("flash_attn"))):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", ModuleType("flash_attn.cute"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute.utils", utils)
    monkeypatch.delitem(sys.modules, "longca_flashattn.interval_mod", raising=False)
    import longca_flashattn.interval_mod as module

    yield module
    sys.modules.pop("longca_flashattn.interval_mod")


def table(intervals):
    """The numbers as the plan lays them out, and how many intervals a token has there."""
    from longca_flashattn.fa4_intervals import _table

    tensor = _table(intervals, "cpu")
    return Memory(tensor.flatten().tolist()), tensor.shape[1] // 2


def columns(first, count):
    """The columns of a thread's fragment."""
    return [first + 8 * (i // 2) + i % 2 for i in range(count)]


@pytest.mark.parametrize("name", MASKS)
def test_forward(interval_mod, name):
    mask = MASKS[name]
    visible, (memory, count) = mask.dense(), table(mask.row_intervals())
    for query_tile, key_tile, thread in [(0, 0, 0), (1, 0, 1), (1, 1, 2), (2, 1, 3), (2, 2, 0), (2, 0, 2)]:
        mod = interval_mod.IntervalMod(count, by_key=False, columns=32)
        for query in (128 * query_tile + 17, 128 * query_tile + 25):
            for key in columns(128 * key_tile + 2 * thread, 32):
                assert mod(0, 0, [query], [key], None, None, (memory,)) == visible[query, key]


@pytest.mark.parametrize("tile", [64, 128])
@pytest.mark.parametrize("name", MASKS)
def test_backward(interval_mod, name, tile):
    mask = MASKS[name]
    visible, (memory, count) = mask.dense(), table(mask.column_intervals())
    for query_tile, key_tile, thread in [(0, 0, 0), (1, 0, 1), (1, 1, 2), (2, 1, 3), (2, 2, 0), (2, 0, 2)]:
        mod = interval_mod.IntervalMod(count, by_key=True, columns=tile // 4)
        for query in columns(tile * query_tile + 2 * thread, tile // 4):
            for key in (128 * key_tile + 40, 128 * key_tile + 48):
                assert mod(0, 0, [query], [key], None, None, (memory,)) == visible[query, key]


def test_one_kernel_for_all_masks_with_as_many_intervals(interval_mod):
    first, second = (interval_mod.IntervalMod(2, by_key=False, columns=32) for _ in range(2))
    first(0, 0, [0], [0], None, None, (Memory([0] * 4),))
    assert first.__cute_hash__ == second.__cute_hash__
    other = interval_mod.IntervalMod(1, by_key=False, columns=32)
    assert other.__cute_hash__ != first.__cute_hash__
