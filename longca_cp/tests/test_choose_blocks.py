"""Blocks that ranks choose together are those that one process chooses, and attention takes the mask."""

from .test_strategies import MESHES, meshes, sizes

BOUNDS = [0, 5, 6, 30, 57, 101]
CHOICES = {
    "for each KV head": {"block": 16, "kept": 0.4},
    "for each query head": {"block": 8, "kept": 0.2, "per": "query"},
    "for all heads": {"block": 16, "kept": 0.3, "per": "shared"},
    "of any size": {"q_bounds": BOUNDS, "k_bounds": BOUNDS, "kept": 0.5},
    "at random": {"block": 16, "kept": 0.3, "scores": "random", "seed": 3},
}


@meshes(4)
def test_ranks_choose_what_one_process_chooses(world, strategy, mesh):
    for choice in CHOICES.values():
        found = world.run("chosen", strategy, tuple(mesh.items()), choice)
        assert len({digest for digest, _, _ in found}) == 1
        assert all(digest == alone for digest, alone, _ in found)
        assert max(error for _, _, error in found) < 1e-5


@sizes(4)
def test_the_order_of_a_meshs_dims_only_moves_ranks(world):
    strategy = "loongtrain"
    mesh = MESHES[strategy][4][0]
    for digest, alone, error in world.run(
        "chosen", strategy, tuple(mesh.items()), CHOICES["of any size"], tuple(reversed(mesh))
    ):
        assert digest == alone
        assert error < 1e-5


@sizes(2)
def test_what_does_not_fit_is_said(world):
    says = {
        "mesh": "layout is a Layout and mesh a NoneType; to choose blocks of tokens that ranks share, give the layout",
        "sizes": "mesh a dict",
        "layout": "layout is a NoneType and mesh a DeviceMesh",
        "ranks": "the layout is of 4 ranks, and the mesh has 2",
        "shard": "holds 20 of 40 here; give each rank its shard",
    }
    for found in world.run("choice_refusals", 2):
        assert {name: error[0] for name, error in found.items()} == dict.fromkeys(says, "RequestError")
        assert [name for name, text in says.items() if text not in found[name][1]] == []
