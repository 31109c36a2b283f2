"""The pictures of the pages on context parallelism show today's layouts and schedules."""

from __future__ import annotations

import pytest
from PIL import Image

from longca import masks, registry
from longca.manifests import Device, Problem
from longca_bench.reports.layout_arrangement import arrange
from longca_bench.reports.layout_picture import DIGEST

from .docs_pages import DOCS, docs_module

PICTURES = docs_module("pictures")
MESHES = {
    "ulysses": {"ulysses": 4},
    "ring_p2p": {"ring": 4},
    "ring_all_gather": {"ring": 4},
    "usp": {"ring": 2, "ulysses": 2},
    "loongtrain": {"outer": 1, "inner": 2, "heads": 2},
}


@pytest.mark.parametrize("name", PICTURES.PICTURES)
def test_a_picture_shows_todays_arrangement(name):
    path = DOCS / "images" / f"{name}.png"
    with Image.open(path) as picture:
        assert picture.info[DIGEST] == PICTURES.digest(name), "draw it again: python docs/pictures.py"
    assert path.stat().st_size < 150_000
    assert any(f"](images/{name}.png)" in page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))


def test_every_strategy_has_a_picture():
    assert set(PICTURES.STRATEGIES) == set(MESHES)
    assert set(MESHES) <= set(registry().strategies)


def test_a_picture_is_drawn_with_its_digest(tmp_path):
    with Image.open(PICTURES.write("cp-usp", tmp_path)) as picture:
        assert picture.info[DIGEST] == PICTURES.digest("cp-usp")
        assert min(picture.size) > 800


@pytest.mark.parametrize("strategy", MESHES)
def test_a_schedule_sends_the_bytes_of_the_pages_table(strategy):
    """A forward, with the log-sum-exps of head exchanges."""
    problem = Problem(
        mask=masks.build("full", 64), heads_q=8, heads_kv=4, head_dim=8, dtype="float32", device=Device("cpu")
    )
    q, kv, lse = 16 * 8 * 8 * 4, 2 * 16 * 4 * 8 * 4, 16 * 8 * 4
    sent = {
        "ulysses": 3 / 4 * (2 * q + kv + lse),
        "ring_p2p": 3 * kv,
        "ring_all_gather": 3 * kv,
        "usp": 1 / 2 * (2 * q + kv + lse) + kv,
        "loongtrain": 1 / 2 * (2 * q + kv + lse) + kv,
    }
    assert arrange(registry(), strategy, problem, MESHES[strategy], "contiguous").sent == sent[strategy]
