"""Shared memory: tensors in it, its reuse, and the same tensor in another process."""

import gc
import mmap

import pytest
import torch

from longca_bench.measuring.arena import Arena, Block, tensor_at

CPU = torch.device("cpu")


@pytest.fixture
def arena():
    return Arena(CPU)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_another_mapping_sees_what_is_written(arena, dtype):
    ours = arena.clone(torch.arange(60, dtype=dtype).view(3, 4, 5))
    block, where = arena.block_of(ours), arena.where(ours)
    theirs = tensor_at(Block(block.number, block.nbytes, CPU, memory=mmap.mmap(block.fd, block.nbytes)), where)
    assert torch.equal(ours, theirs)
    theirs[1, 2, 3] = 7
    assert ours[1, 2, 3] == 7
    assert theirs._version == 2  # a new tensor at a known address


def test_strides_are_kept_and_gaps_are_nan(arena):
    wide = torch.randn(4, 6, 8)
    copy = arena.clone(wide[:, :-1])
    assert (copy.stride(), torch.equal(copy, wide[:, :-1])) == (wide.stride(), True)
    whole = copy.as_strided((4, 6, 8), wide.stride())[:3]
    assert whole[:, -1].isnan().all()


def test_a_block_serves_again_when_its_tensor_is_gone(arena):
    first = arena.empty((1000,), torch.float32)
    number = arena.where(first).block
    view = first[10:]
    del first
    gc.collect()
    assert arena.unused == []
    assert (arena.where(view).block, arena.where(view).offset) == (number, 10)
    del view
    gc.collect()
    assert arena.unused == [number]
    assert arena.where(arena.empty((999,), torch.float32)).block == number


def test_trimming_gives_memory_back(arena):
    kept = arena.empty((5,), torch.float32)
    arena.empty((2**20,), torch.float32)
    gc.collect()
    assert arena.nbytes > 2**22
    arena.trim()
    assert arena.nbytes == 2**12
    assert arena.block_of(kept) is not None
    assert arena.block_of(torch.empty(3)) is None


def test_an_empty_tensor_has_a_place(arena):
    assert arena.empty((0, 4), torch.float32).numel() == 0
