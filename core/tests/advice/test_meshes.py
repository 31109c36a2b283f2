"""Meshes: all splits of a few ranks, and some that differ of many."""

from __future__ import annotations

from math import prod

import pytest

from longca_advice.meshes import few_meshes, left_out, meshes


def test_every_split_without_axes_of_one_rank() -> None:
    assert list(meshes(8, ("ring", "ulysses"))) == [{"ring": 2, "ulysses": 4}, {"ring": 4, "ulysses": 2}]
    assert list(meshes(7, ("ring", "ulysses"))) == []
    assert list(meshes(7, ("ring",))) == [{"ring": 7}]


@pytest.mark.parametrize("ranks", [8, 48, 64])
def test_every_mesh_of_a_few_ranks_is_looked_at(ranks: int) -> None:
    axes = ("outer", "inner", "heads")
    assert few_meshes(ranks, axes, 8) == list(meshes(ranks, axes))
    assert not list(left_out(ranks, "loongtrain", axes, 8))


@pytest.mark.parametrize(("ranks", "per_host"), [(512, 8), (96, 4), (1024, 1), (81, 8)])
def test_of_many_ranks_a_few_meshes_are_looked_at_and_that_is_said(ranks: int, per_host: int) -> None:
    axes = ("outer", "inner", "heads")
    few, every = few_meshes(ranks, axes, per_host), list(meshes(ranks, axes))
    assert 0 < len(few) <= 6
    assert all(sizes in every and prod(sizes.values()) == ranks for sizes in few)
    assert [every.index(sizes) for sizes in few] == sorted({every.index(sizes) for sizes in few})
    if any(sizes["heads"] <= per_host for sizes in every):
        assert all(sizes["heads"] <= per_host for sizes in few)
    said = list(left_out(ranks, "loongtrain", axes, per_host))
    assert [text.split(" meshes")[0] for text in said] == ([f"{len(few)} of the {len(every)}"] if few != every else [])
