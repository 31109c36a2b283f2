"""The pictures of the page on context parallelism: of today's layouts, and of what the strategies do."""

from __future__ import annotations

import pytest
from PIL import Image

from longca.masks import build

from .docs_pages import DOCS, docs_module

PAGE = DOCS / "context-parallel.md"
MESHES = {
    "ulysses": "ulysses=4",
    "ring_p2p": "ring=4",
    "ring_all_gather": "ring=4",
    "usp": "ring=2,ulysses=2",
    "loongtrain": "outer=1,inner=2,heads=2",
}

PICTURES = [
    f"cp-{name}" for name in ("ulysses", "ring-p2p", "ring-all-gather", "usp", "loongtrain", "placements")
]  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_of_todays_layouts_and_order(name):
    pictures = docs_module("parallel_pictures")
    path = DOCS / "images" / f"{name}.png"
    with Image.open(path) as picture:
        drawn = picture.info[pictures.DIGEST]
    assert drawn == pictures.PICTURES[name].digest(), "draw it again: python docs/parallel_pictures.py"
    assert path.stat().st_size < 150_000
    assert f"](images/{name}.png)" in PAGE.read_text(encoding="utf-8")


def test_pictures_are_drawn_of_every_strategy(tmp_path):
    pictures = docs_module("parallel_pictures")
    assert sorted(pictures.PICTURES) == sorted(PICTURES)
    path = pictures.write("cp-usp", tmp_path)
    with Image.open(path) as picture:
        assert picture.info[pictures.DIGEST] == pictures.PICTURES["cp-usp"].digest()
        assert min(picture.size) > 800


@pytest.mark.parametrize("strategy", MESHES)
def test_a_rehearsal_sends_what_the_page_says(strategy):
    """The bytes of the page's first table, of a forward, with the log-sum-exps of head exchanges beside."""
    mesh = {axis: int(size) for axis, size in (pair.split("=") for pair in MESHES[strategy].split(","))}
    mask = build("full", seqlen=64)
    found = docs_module("parallel_rehearsal").rehearse(strategy, mask, mesh, "contiguous", (8, 4))
    q, kv, lse = 16 * 8 * 8 * 4, 2 * 16 * 4 * 8 * 4, 16 * 8 * 4
    sent = {
        "ulysses": 3 / 4 * (2 * q + kv + lse),
        "ring_p2p": 3 * kv,
        "ring_all_gather": 3 * kv,
        "usp": 1 / 2 * (2 * q + kv + lse) + kv,
        "loongtrain": 1 / 2 * (2 * q + kv + lse) + kv,
    }
    for part in found.parts:
        assert sum(move.sent for move in part.moves) == sent[strategy]


def test_a_schedule_hides_what_is_begun_before_a_call_and_waited_for_after_it():
    rehearsal, schedules = docs_module("parallel_rehearsal"), docs_module("parallel_schedule")
    part = rehearsal.Part(
        [rehearsal.Event(*pair) for pair in (("begin", 0), ("call", 0), ("wait", 0), ("begin", 1), ("wait", 1))],
        [rehearsal.Move("p2p", "ring", 10, (1,))] * 2,
    )
    times = schedules.schedule(part, [1.0])
    assert (times.calls[0].start, times.calls[0].stop) == (0.0, 1.0)
    assert times.moves[0].start == 0.0
    assert times.moves[1].start == times.calls[0].stop
    assert [schedules.is_hidden(part, move) for move in (0, 1)] == [True, False]
