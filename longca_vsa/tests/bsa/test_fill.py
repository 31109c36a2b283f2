"""The script `fill.py`, compared with cells counted one by one."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import longca
from longca_triton.checking import load_script
from longca_vsa.bsa.configs import Config, Configs, FromScores
from longca_vsa.bsa.plan import make_plan

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fill.py"
CONFIGS = Configs(Config(32, 16, 4, 2), Config(16, 32, 4, 2), Config(64, 32, 4, 2))
BOUNDS = [0, 5, 70, 71, 150, 203]
SUITE = """
name = "small"
version = 1
summary = "A small one"

[[sweep]]
patterns = ["uniform_block_sparse", "variable_block_sparse"]
kernels = ["bsa", "naive"]
seqlens = [1024]
heads = ["8:2"]
head_dims = [128]
dtypes = ["bfloat16"]

[sweep.factors.uniform_block_sparse]
block = 64
"""


@pytest.fixture(scope="module")
def fill():
    return load_script(SCRIPT)


def one_by_one(kept, packed, block_rows, step, walks):
    """Cells of tiles with rows of one block, and steps from the beginning of each run of visible columns."""
    cells = 0
    for head in kept:
        for (start, stop), row in zip(pairwise(BOUNDS), head, strict=True):
            columns = np.repeat(row, np.diff(BOUNDS))
            edges = np.flatnonzero(np.diff(np.r_[0, columns.astype(int), 0])).reshape(-1, 2)
            steps = sum(-(-(last - first) // step) for first, last in edges)
            cells += -(-(stop - start) * packed // block_rows) * steps * block_rows * step * walks
    return cells


@pytest.mark.parametrize(("mask_heads", "heads_q", "packed"), [(1, 4, 2), (2, 4, 2), (4, 4, 1), (2, 2, 1)])
def test_cells_are_those_of_all_programs_and_steps(fill, mask_heads, heads_q, packed):
    kept = np.random.default_rng(0).random((mask_heads, 5, 5)) < 0.5
    mask = longca.masks.BlockSparseMask(kept, BOUNDS, BOUNDS)
    problem = longca.Problem(mask=mask, heads_q=heads_q, heads_kv=2, device=fill.CPU, direction="backward")
    plan = make_plan(problem, CONFIGS)
    each = heads_q // mask_heads
    assert fill.computed(plan, "forward") == one_by_one(kept, packed, 32, 16, each // packed)
    assert fill.computed(plan, "dq") == one_by_one(kept, packed, 64, 32, each // packed)
    assert fill.computed(plan, "dkdv") == one_by_one(kept.swapaxes(1, 2), 1, 32, 16, each)


def test_cells_of_a_product_with_stored_gradients(fill):
    kept = np.random.default_rng(0).random((2, 5, 5)) < 0.5
    mask = longca.masks.BlockSparseMask(kept, BOUNDS, BOUNDS)
    problem = longca.Problem(mask=mask, heads_q=4, heads_kv=2, device=fill.CPU, direction="backward")
    stored = Configs(CONFIGS.forward, CONFIGS.dkdv, FromScores(64, CONFIGS.dkdv.block_n, 4, 2, store=2**12))
    plan = make_plan(problem, stored)
    assert len(plan.ranges) > 1
    sizes = np.diff(BOUNDS)
    tiles = -(-sizes * 2 // 64)[:, None] * -(-sizes // 32)  # of rows under two heads, and of keys
    assert fill.computed(plan, "dq") == (kept * tiles).sum() * 64 * 32
    assert fill.weights_of(plan) == {"dkdv": 8, "dq": 2}


def test_the_record_has_a_row_a_mask(fill, tmp_path, capsys):
    (tmp_path / "small.toml").write_text(SUITE, encoding="utf-8")
    fill.main([str(tmp_path / "small.toml"), "--out", str(tmp_path / "new" / "fill.json")])
    record = json.loads((tmp_path / "new" / "fill.json").read_text(encoding="utf-8"))
    assert record["environment"]["device"]["kind"] == "cpu"
    uniform, variable = record["rows"]
    assert uniform["factors"] == {"block": 64}
    assert set(uniform["fill"].values()) == {1.0}, "blocks of 64 under 4 heads fill tiles of 128 and steps of 64"
    assert uniform["visible"] == uniform["computed"]["dq"]
    assert uniform["tiles"] == {"forward": [128, 64], "dkdv": [64, 64], "dq": [128, 64]}, "those of capability 9.0"
    fills = variable["fill"]
    weighed = (8 / fills["dkdv"] + 6 / fills["dq"]) / 14
    assert fills["backward"] == pytest.approx(1 / weighed)
    assert 0 < fills["forward"] < 1
    assert len(capsys.readouterr().out.splitlines()) == 2
