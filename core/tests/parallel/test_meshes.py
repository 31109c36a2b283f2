"""Meshes by the names of their axes, with dims in any order."""

import itertools
import subprocess
import sys

import pytest
import torch

from longca.errors import RequestError
from longca.parallel.meshes import axis_sizes, mesh_dims, rank_in


class Mesh:
    """As much of a device mesh as is asked, without processes."""

    device_type = "cuda"

    def __init__(self, coordinate=None, **sizes):
        self.mesh_dim_names = tuple(sizes) or None
        self.mesh = torch.arange(torch.Size(sizes.values()).numel()).view(*sizes.values())
        self._coordinate = coordinate

    @property
    def ndim(self):
        return self.mesh.ndim

    def size(self, dim):
        return self.mesh.shape[dim]

    def get_coordinate(self):
        return self._coordinate


def test_axes_are_found_by_name():
    mesh = Mesh(heads=2, inner=3, outer=5)
    assert mesh_dims(mesh, ("outer", "inner", "heads")) == (2, 1, 0)
    assert axis_sizes(mesh, ("outer", "inner", "heads")) == {"outer": 5, "inner": 3, "heads": 2}


def test_one_dim_may_have_any_name():
    assert mesh_dims(Mesh(cp=4), ("ring",)) == (0,)
    assert axis_sizes(Mesh(cp=4), ("ring",)) == {"ring": 4}
    assert axis_sizes({"cp": 4}, ("ring",)) == {"ring": 4}


@pytest.mark.parametrize("order", list(itertools.permutations(("outer", "inner", "heads"))))
def test_ranks_are_numbered_by_the_strategys_axes(order):
    sizes = {"outer": 2, "inner": 3, "heads": 4}
    places = list(itertools.product(*(range(size) for size in sizes.values())))
    for rank, place in enumerate(places):
        at = dict(zip(sizes, place, strict=True))
        mesh = Mesh([at[name] for name in order], **{name: sizes[name] for name in order})
        assert rank_in(mesh, tuple(sizes)) == rank


def test_other_dims_are_refused_with_what_to_do():
    says = (
        r"the mesh is 2×2 with dims dp, cp; this strategy runs over ring, ulysses\. Make one with init_device_mesh"
        r"\('cuda', sizes, mesh_dim_names=\(\"ring\", \"ulysses\"\)\)"
    )
    with pytest.raises(RequestError, match=says):
        mesh_dims(Mesh(dp=2, cp=2), ("ring", "ulysses"))
    with pytest.raises(RequestError, match=r'mesh_dim_names=\("ring",\)'):
        mesh_dims(Mesh(dp=2, ring=2), ("ring",))


@pytest.mark.parametrize("ranks", [[[1, 0], [2, 3]], [[2, 3], [0, 1]], [[0, 1], [3, 2]]])
def test_ranks_that_do_not_ascend_are_refused(ranks):
    mesh = Mesh([0, 0], ring=2, ulysses=2)
    mesh.mesh = torch.tensor(ranks)
    for ask in (mesh_dims, axis_sizes, rank_in):
        with pytest.raises(RequestError, match=r"do not ascend along its dim (ring|ulysses), .* init_device_mesh"):
            ask(mesh, ("ring", "ulysses"))


def test_ranks_of_a_part_of_a_larger_mesh_may_have_gaps():
    mesh = Mesh([1], ring=2)
    mesh.mesh = torch.tensor([3, 7])
    assert rank_in(mesh, ("ring",)) == 1


def test_a_process_outside_the_mesh():
    with pytest.raises(RequestError, match="this process is not in the mesh"):
        rank_in(Mesh(None, ring=2), ("ring",))


#: A program that destroys its groups, and drops a mesh that holds one in a cycle.
LEFT = """
import atexit, os, sys, time
from pathlib import Path

def threads():
    return sorted((task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir())

atexit.register(lambda: print(*threads(), sep="\\n"))
import torch.distributed as dist
import torch.distributed.nn.functional  # its functions keep the default group, if it is imported after its making
from torch.distributed.device_mesh import init_device_mesh
import longca.parallel.meshes

class Model:
    pass

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = Model()
model.itself, model.mesh = model, init_device_mesh("cpu", (1,), mesh_dim_names=("ring",))
model.group = model.mesh.get_group()
while not any("gloo" in name for name in threads()):  # a thread names itself when it first runs
    time.sleep(0.01)
del model
dist.destroy_process_group()
"""


def test_no_thread_of_a_group_is_left_when_the_interpreter_ends(tmp_path):
    script = tmp_path / "left.py"
    script.write_text(LEFT)
    ran = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "store")], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout
    assert "gloo" not in ran.stdout
