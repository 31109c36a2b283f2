"""Whether axes get links: those that are asked for, and by `auto` between as many GPUs as they are verified on."""

import pytest

from longca import Transport
from longca_cp.pushes import VERIFIED_RANKS, takes_links


@pytest.mark.parametrize(
    ("transport", "ranks", "on_gpus", "takes"),
    [
        ("auto", [VERIFIED_RANKS], True, True),
        ("auto", [1, VERIFIED_RANKS], True, True),
        ("auto", [VERIFIED_RANKS], False, False),
        ("auto", [VERIFIED_RANKS + 1], True, False),
        ("auto", [2, VERIFIED_RANKS], True, False),
        ("auto", [1], True, False),
        ("copy_engine", [2, 4], True, True),
        ("copy_engine", [2], False, True),
        ("copy_engine", [1, 1], True, False),
        ("collectives", [VERIFIED_RANKS], True, False),
    ],
)
def test_who_gets_links(transport, ranks, on_gpus, takes):
    assert takes_links(Transport(transport), ranks, on_gpus) == takes
