"""Capacities: their names, and what fits."""

import pytest

from longca.errors import RequestError
from longca_advice.devices import Capacity


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GB", 80 * 10**9),
        ("80GiB", 80 * 2**30),
        ("1.5TB", 15 * 10**11),
        ("80gb", 80 * 10**9),
    ],
)
def test_a_size_has_a_unit(text, size):
    assert Capacity.parse(text) == Capacity(size)


@pytest.mark.parametrize("text", ["", "80", "GB", "80 apples", "-80GB"])
def test_anything_else_is_refused(text):
    with pytest.raises(RequestError, match="80GB"):
        Capacity.parse(text)
