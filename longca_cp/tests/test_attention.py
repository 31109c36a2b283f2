"""longca.attention and longca.layout under a strategy: results, messages and agreement of ranks."""

import pytest
import torch

import longca
from longca import masks

from .test_strategies import EXACT, MESHES, meshes, sizes

CPU = longca.Device("cpu")


@sizes(2)
def test_what_is_wrong_is_said(world):
    for found in world.run("refusals", 2):
        says = {
            "no mesh": ("RequestError", "ring_p2p runs on a device mesh; make one with init_device_mesh"),
            "no strategy": ("RequestError", "a mesh without a strategy"),
            "strategy": ("UnknownNameError", "unknown strategy 'ring'. Did you mean ring_p2p"),
            "placement": ("UnknownNameError", "unknown placement of ring_p2p 'zig_zag'. Did you mean zigzag"),
            "kernel": ("UnknownNameError", "unknown kernel 'naiv'. Did you mean naive"),
            "axes": ("RequestError", "the mesh is 2 with dims ring; this strategy runs over ring, ulysses"),
            "sizes for a mesh": ("RequestError", "mesh is a dict; make one with init_device_mesh"),
            "shard": ("RequestError", "holds 20 of 40 here; shard with longca.layout"),
            "heads": ("UnsupportedError", "3 query heads do not divide among the 2 ranks"),
        }
        assert set(found) == set(says)
        for name, (kind, text) in says.items():
            assert found[name] is not None, name
            assert found[name][0] == kind
            assert text in found[name][1]


@sizes(2)
def test_a_layout_of_something_else_is_refused_on_all_ranks(world):
    says = {
        "mask": "this layout is of another mask: its steps show other pairs than this causal of 40 tokens",
        "tokens": "this layout is of 38 tokens on 2 ranks, and the mask of 40, on 2",
        "strategy": "this layout is one of ring_p2p on ring=2, and ring_all_gather runs on ring=2 here",
        "ranks": "this layout is one of ring_all_gather on ring=4, and ring_all_gather runs on ring=2 here",
        "heads": "this layout is of 8:2 heads, and the tensors have 4:2 heads",
    }
    for found in world.run("others_layouts", 2):
        assert {name: error[0] for name, error in found.items()} == dict.fromkeys(says, "RequestError")
        assert [name for name, text in says.items() if not found[name][1].startswith(text)] == []


@sizes(2)
def test_a_ring_takes_a_layout_of_another_mask_of_as_many_tokens(world):
    assert all(error <= EXACT for error in world.run("one_placement_for_two_masks", 2))


@sizes(2)
def test_a_process_outside_the_mesh(world):
    inside, out = world.run("outside", 2)
    assert inside == [None] * 3
    for kind, text in out:
        assert kind == "RequestError"
        assert "this process is not in the mesh" in text


@sizes(2)
def test_a_plan_is_made_once(world):
    # The placement that auto found and the layout that was given share it.
    assert world.run("reused", 2) == [(1, True)] * 2


@meshes(2)
def test_calls_with_other_settings_have_plans_of_their_own(world, strategy, mesh):
    assert all(error <= EXACT for error in world.run("other_settings", strategy, tuple(mesh.items())))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@sizes(2)
def test_two_layers_in_one_graph(world, compiled):
    assert all(error <= EXACT for error in world.run("two_layers", 2, compiled))


@sizes(4)
def test_one_dim_of_a_larger_mesh(world):
    assert all(error <= EXACT for error in world.run("in_part_of_a_mesh", 4))


@sizes(4)
def test_ranks_agree_on_the_first_ones_choice(world):
    assert world.run("first_choice", 4) == ["choice of 0"] * 4


@sizes(4)
def test_equal_inputs_give_equal_bits(world):
    kind, factors = "causal_sliding_window", (("window", 9),)
    for strategy, by_size in MESHES.items():
        for mesh in by_size[4]:
            assert world.run("repeated", strategy, tuple(mesh.items()), kind, factors) == [True] * 4


# Without processes


def lay_out(mask, strategy="ring_p2p", mesh=None, **more):
    asked = {"heads": (8, 2), "device": CPU, **more}
    return longca.layout(mask, strategy=strategy, mesh=mesh or {"ring": 4}, **asked)


def test_a_layout_needs_no_processes():
    mask = masks.build("causal", 64)
    layout = lay_out(mask)
    assert layout.world_size == 4
    x = torch.arange(64)
    assert torch.equal(layout.unshard([layout.shard(x, rank) for rank in range(4)]), x)
    assert layout == lay_out(mask, dtype=torch.bfloat16, kernel="auto", placement="auto")
