"""Whether axes get links: those that are asked for, and by `auto` axes of as many GPUs as they are verified on."""

import pytest

from longca import Transport
from longca_cp.pushes import LINKED_RANKS, axes_with_links


@pytest.mark.parametrize(
    ("transport", "ranks", "on_gpus", "takes"),
    [
        ("auto", [LINKED_RANKS], True, [True]),
        ("auto", [1, LINKED_RANKS], True, [False, True]),
        ("auto", [LINKED_RANKS], False, [False]),
        ("auto", [LINKED_RANKS + 1], True, [False]),
        ("auto", [2, LINKED_RANKS], True, [True, True]),
        ("auto", [4, LINKED_RANKS, 1], True, [False, True, False]),
        ("copy_engine", [2, 4], True, [True, True]),
        ("copy_engine", [2], False, [True]),
        ("copy_engine", [1, 1], True, [False, False]),
        ("collectives", [LINKED_RANKS], True, [False]),
    ],
)
def test_which_axes_get_links(transport, ranks, on_gpus, takes):
    sizes = {f"axis {at}": size for at, size in enumerate(ranks)}
    wanted = {axis for axis, takes_it in zip(sizes, takes, strict=True) if takes_it}
    assert axes_with_links(Transport(transport), sizes, on_gpus) == wanted
