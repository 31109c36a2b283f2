"""LongCA serves the interface of torchtitan's main of August 2026 (b5bcd76), of which this file has a stub.

The stub has the parts that LongCA touches. A module's `parallelize` finds the arguments of a forward by their names,
and gathers keys and values where the config says so. A decoder has its rule of masks. Tensors have no dim of rows.
"""

import importlib
import inspect
import subprocess
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import scaled_dot_product_attention

import longca.integrations
from longca import masks

pytest.importorskip("longca_cp", reason="the strategies are in longca-cp")

LENGTHS = (9, 1, 14)
TOKENS, HEADS, HEADS_KV, HEAD_DIM = sum(LENGTHS), 4, 2, 8
WINDOWS = ((-1, 0), (4, 0))


class Module(torch.nn.Module):
    """The stub of `torchtitan.protocols.module.Module`."""

    _sharding_config = None
    _pos_arg_list = None

    @dataclass(kw_only=True, slots=True)
    class Config:
        pass

    def parallelize(self, parallel_dims):
        config = self._sharding_config
        if self._pos_arg_list is None:
            taken = inspect.signature(type(self).forward).parameters.values()
            self._pos_arg_list = [each.name for each in taken if each.kind is each.POSITIONAL_OR_KEYWORD][1:]
        assert set(self._pos_arg_list) == set(config.in_dst_shardings), "no placement of an argument"
        local = self.forward

        def forward(*given, **others):
            for name in self._pos_arg_list:
                assert config.in_src_shardings[name] == config.in_dst_shardings[name], f"{name} was gathered"
            return local(*given, **others)

        self.forward, self.gradients = forward, config.local_map.in_grad_placements


class Decoder(Module):
    """The stub of `torchtitan.models.common.decoder.Decoder`."""

    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)
        attention = SimpleNamespace(n_heads=HEADS, n_kv_heads=HEADS_KV, head_dim=HEAD_DIM, dim=HEADS * HEAD_DIM)
        self.config = SimpleNamespace(first_attention=attention)

    def get_attention_masks(self, positions):
        raise AssertionError("LongCA makes the masks")


@dataclass(frozen=True)
class LocalMap:
    in_grad_placements: tuple = ("q", "partial", "partial")


@dataclass(frozen=True)
class Sharding:
    """What torchtitan's `set_gqa_inner_attention_local_map` declares."""

    in_src_shardings: dict = field(default_factory=lambda: dict.fromkeys(("q_TNH", "k_TNH", "v_TNH"), "q"))
    in_dst_shardings: dict = field(default_factory=lambda: {"q_TNH": "q", "k_TNH": "all", "v_TNH": "all"})
    local_map: LocalMap = LocalMap()


@pytest.fixture
def titan(monkeypatch):
    """LongCA's integration, imported with the stub in torchtitan's place."""
    paths = {"protocols.module": {"Module": Module}, "models.common.decoder": {"Decoder": Decoder}}
    for path, names in paths.items():
        parts = ["torchtitan", *path.split(".")]
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            module = ModuleType(name)
            module.__path__ = []
            monkeypatch.setitem(sys.modules, name, module)
        vars(module).update(names)
    yield importlib.import_module("longca.integrations.torchtitan")
    for name in ("", ".batches", ".inner_attention"):
        del sys.modules[f"longca.integrations.torchtitan{name}"]
    del longca.integrations.torchtitan


@pytest.fixture
def dims(tmp_path):
    """torchtitan's parallel dims with a mesh of one rank."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("cp",))
    yield SimpleNamespace(tp=1, cp_enabled=True, spmd_backend="spmd_types", get_mesh=lambda name: mesh[name])
    dist.destroy_process_group()


def decoder(titan):
    layers = [titan.LongCAAttention(titan.LongCAAttention.Config(window_size=window)) for window in WINDOWS]
    for layer in layers:
        layer._sharding_config = Sharding()
    return Decoder(layers)


def batch():
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    return {"input": torch.arange(TOKENS) + 100, "positions": positions}, torch.arange(TOKENS) + 200


def attended(layer, window, arguments, order):
    """A layer's attention of the tokens of a rank, held against dense attention."""
    tensors = torch.randn(TOKENS, HEADS + 2 * HEADS_KV, HEAD_DIM, dtype=torch.float64)
    q, k, v = tensors.split([HEADS, HEADS_KV, HEADS_KV], 1)
    out = layer(*(x[order] for x in (q, k, v)), attention_masks=arguments["attention_masks"], enable_gqa=True)
    bounds = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
    seen = torch.from_numpy(masks.from_cu_seqlens(bounds, causal=False, window_size=window).dense())
    wanted = scaled_dot_product_attention(*(x.transpose(0, 1) for x in (q, k, v)), seen, enable_gqa=True)
    torch.testing.assert_close(out, wanted.transpose(0, 1)[order], rtol=0, atol=1e-12)


def test_one_device_attends_without_a_dim_of_rows(titan):
    model = decoder(titan)
    inputs, labels = batch()
    tokens, targets, arguments = titan.prepare_batch([model], inputs, labels)
    assert tokens is inputs["input"]
    assert targets is labels
    for layer, window in zip(model.layers, WINDOWS, strict=True):
        attended(layer, window, arguments, slice(None))


def test_keys_stay_under_context_parallelism_whatever_the_arguments_are_named(titan, dims):
    model = decoder(titan)
    for layer in model.layers:
        layer.parallelize(dims)
        assert layer.gradients == ("q", "q", "q")
    inputs, labels = batch()
    tokens, targets, arguments = titan.prepare_batch([model], inputs, labels, dtype=torch.float64)
    assert sorted(tokens.tolist()) == inputs["input"].tolist()
    order = tokens - 100
    assert torch.equal(targets, labels[order])
    assert torch.equal(arguments["positions"], inputs["positions"][order])
    for layer, window in zip(model.layers, WINDOWS, strict=True):
        attended(layer, window, arguments, order)


def test_a_missing_torchtitan_is_named():
    code = (
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torchtitan':\n"
        "            raise ModuleNotFoundError('No module named torchtitan', name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "import longca.integrations.torchtitan\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stderr.endswith("needs torchtitan, which is not installed. Install it: pip install 'torchtitan'\n")
