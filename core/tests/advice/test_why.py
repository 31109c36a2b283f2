"""Why the first choice leads: one sentence from evidence of kernels whose times are made up."""

import re

import pytest

from longca import masks
from longca.manifests import Device, Problem
from longca_advice.candidates import rank_kernels
from longca_advice.costs import CostModel
from longca_advice.evidence import Run
from longca_advice.request import Request

from ..core_alone import core  # noqa: F401  # a fixture
from .rows import TILE, row

CPU = Device("cpu", None, 2**40, "Some CPU")
RUN = Run(run="a run", device="Some CPU", memory=2**40)


@pytest.fixture
def why(core):  # noqa: F811
    """The sentence on two kernels, of which each takes so many times TILE for a tile of each direction."""

    def said(mask, naive, sdpa):
        rows = [
            row(kernel, "causal", length, direction, run=RUN, dtype="float32", form=form,
                seconds=times * TILE * 8 * tiles(form, length))
            for kernel, each in (("naive", naive), ("sdpa", sdpa))
            for direction, times in zip(("forward", "backward"), each, strict=True)
            for form in ("row_intervals", "causal", "dense")
            for length in (1024, 1536, 2048, 3072, 4096)
        ]  # fmt: skip
        problem = Problem(mask=mask, heads_q=8, heads_kv=2, dtype="float32", device=CPU)
        return rank_kernels(Request(problem, True, core, CostModel(rows), None, ("naive", "sdpa"))).why

    return said


def tiles(form, length):
    """The tiles of 128 × 128 of a causal mask of whole tiles, or of its matrix."""
    lines = length // 128
    return lines * lines if form == "dense" else lines * (lines + 1) // 2


def test_the_direction_that_decides_and_the_rates_of_its_tiles(why):
    text = why(masks.build("causal", 2048), (1, 2), (1.1, 3))
    assert text.startswith("Why naive before sdpa: mostly the backward, ")
    rates = map(float, re.search(r"computed at ([\d.]+) TFLOP/s and not ([\d.]+)\.", text).groups())
    assert list(rates) == pytest.approx([1e-12 * 10 * 128**3 / (times * TILE) for times in (2, 3)], rel=0.02)


def test_tiles_that_only_one_kernel_computes(why):
    mask = masks.build("causal_document", 2048, documents=[512] * 4)
    text = why(mask, (1, 2), (1, 2))
    assert "for each head it computes 40 tiles of 128 × 128 and not 256, and the visible pairs fill 32" in text


def test_nothing_is_said_of_a_tie(why):
    assert why(masks.build("causal", 2048), (1, 2), (1.01, 2)) == ""
