"""The timeline of a call: its record from a profiler's events, and its picture from the record."""

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image

from longca_bench.reports.rows import Rows

from .docs_pages import docs_module

BENCHMARKS = Path(__file__).resolve().parents[1] / "longca_cp" / "benchmarks"
ATTENTION, PUSH, NCCL = "flash::FlashAttnFwdSm90", "Memcpy PtoP (Device -> Device)", "ncclDevKernel_SendRecv(…)"
LOCAL = "Memcpy DtoD (Device -> Device)"


@dataclass
class Event:
    """As much of one of Kineto's events as a timeline asks for, in microseconds."""

    text: str
    begin: int
    takes: int
    annotates: bool = False
    on: object = torch.autograd.DeviceType.CUDA

    def name(self):
        return self.text

    def start_ns(self):
        return 1000 * self.begin

    def duration_ns(self):
        return 1000 * self.takes

    def device_type(self):
        return self.on

    def is_user_annotation(self):
        return self.annotates


@pytest.fixture(scope="module")
def timeline():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        spec = importlib.util.spec_from_file_location("timeline_benchmark", BENCHMARKS / "timeline.py")
        module = importlib.util.module_from_spec(spec)
        before = set(sys.modules)
        spec.loader.exec_module(module)
        yield module
        for name in {name for name in sys.modules if name.startswith("peer")} - before:
            del sys.modules[name]


def test_spans_are_joined_by_kind(timeline):
    events = [
        Event(ATTENTION, 100, 50),
        Event("merge", 151, 10),
        Event(PUSH, 90, 30),
        Event(LOCAL, 110, 30),
        Event(NCCL, 300, 20),
        Event(ATTENTION, 200, 40),
        Event("Memset (Device)", 0, 5),
        Event("forward", 0, 500, annotates=True),
        Event("aten::add", 0, 500, on=torch.autograd.DeviceType.CPU),
    ]
    assert [(str(span.kind), span.start // 1000, span.end // 1000) for span in timeline.spans_of(events)] == [
        ("kernel", 100, 161),
        ("kernel", 200, 240),
        ("copy", 90, 120),
        ("local_copy", 110, 140),
        ("collective", 300, 320),
    ]


def record(timeline, folder):
    """The record of a synthetic trace: copies beside the kernel, and collectives before it."""
    after = Event(LOCAL, 5100, 200)
    beside = [[Event(ATTENTION, 1000 + 10 * rank, 4000), Event(PUSH, 1000, 900), after] for rank in range(2)]
    before = [[Event(NCCL, 5000, 900), Event(ATTENTION, 5900, 4000)] for _ in range(2)]
    rows = []
    for transport, ranks in (("copy_engine", beside), ("collectives", before)):
        spans = [timeline.spans_of(events) for events in ranks]
        rows += timeline.rows_of(spans, strategy="ring_p2p", transport=transport, direction="forward")
    path = folder / "timeline.json"
    path.write_text(json.dumps({"rows": rows}), "utf-8")
    return path


def test_times_are_from_the_first_span_of_a_call(timeline, tmp_path):
    rows = json.loads(record(timeline, tmp_path).read_text("utf-8"))["rows"]
    found = {(row["transport"], row["rank"], row["kind"]): (row["start"], row["end"]) for row in rows}
    assert found["copy_engine", 1, "kernel"] == (0.01, 4.01)
    assert found["copy_engine", 1, "copy"] == (0.0, 0.9)
    assert found["collectives", 0, "collective"] == (0.0, 0.9)
    assert found["collectives", 0, "kernel"] == (0.9, 4.9)


def test_the_picture_shows_copies_below_the_kernel(timeline, tmp_path):
    chart, out = docs_module("timeline_chart"), tmp_path / "timeline.png"
    rows = Rows.read(record(timeline, tmp_path))
    assert len(chart.figures(rows)) == 10
    chart.draw(rows, out, metadata={"Description": "a digest"})
    with Image.open(out) as image:
        assert image.info["Description"] == "a digest"
        colours = {colour for _, colour in image.convert("RGB").getcolors(2**24)}
    for words, colour in chart.KINDS.values():
        assert tuple(bytes.fromhex(colour[1:])) in colours, words
