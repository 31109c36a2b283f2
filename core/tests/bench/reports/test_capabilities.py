"""Cells of the matrix: of several offers, the one whose answer is nearest to what was asked."""

import pytest

from longca import masks
from longca.manifests import Device, Offer
from longca_bench.reports.capabilities import Question, Reach, examine

from ...fake_manifests import fake_manifest

CPU, SM80, SM90 = Device("cpu"), Device("cuda", (8, 0)), Device("cuda", (9, 0))
FULL = masks.get_pattern("full")
ON_CPU = {"cpu": True}
ON_GPU = {"verified_on": ">=8.0", "head_dim_multiple": 8}
AHEAD = {"verified_on": ">=8.0", "backward": "none"}


def cell(registry, offers, question, direction="backward"):
    usual = {"form": "full", "backward": "external", "dtypes": ("bfloat16",), "metadata": "O(1)"}
    registry.kernels["fake"] = fake_manifest(*(Offer(**{**usual, **offer}) for offer in offers))
    return examine(registry, "fake", FULL, direction, question)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_what_keeps_the_offer_of_this_device_is_told_before_another_devices(core, direction):
    found = examine(core, "sdpa", FULL, direction, Question(SM90, head_dim=100))
    assert found.reach is Reach.OPTIONS
    assert [str(reason) for reason in found.verdict.reasons] == [
        "sdpa takes head dimensions that are multiples of 8; 100 was asked."
    ]


@pytest.mark.parametrize(
    "offers",
    [[ON_CPU, AHEAD, ON_GPU], [AHEAD, ON_GPU, ON_CPU], [ON_GPU, ON_CPU, AHEAD]],
    ids=["CPU first", "CPU last", "CPU between"],
)
def test_offers_may_come_in_any_order(core, offers):
    found = cell(core, offers, Question(SM90, head_dim=100))
    assert found.reach is Reach.OPTIONS
    assert [reason.code for reason in found.verdict.reasons] == ["head_dim"]


@pytest.mark.parametrize(
    ("offers", "question"),
    [
        ([AHEAD, ON_CPU], Question(SM90)),
        ([ON_GPU, {"verified_on": ">=8.0"}], Question(CPU, head_dim=100)),
        ([ON_GPU, {"verified_on": "==9.0"}], Question(SM80, head_dim=100)),
    ],
    ids=["a forward alone here", "nothing for this kind", "another GPU"],
)
def test_what_other_devices_run_is_still_told(core, offers, question):
    assert cell(core, offers, question).reach is Reach.DEVICE
