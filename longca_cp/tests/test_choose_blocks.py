"""Blocks that ranks choose together are those that one process chooses, and attention takes the mask."""

from .test_strategies import meshes

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
