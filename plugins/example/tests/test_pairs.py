"""online as one half of a pair: its forward with another kernel's backward, and the reverse."""

from __future__ import annotations

import pytest

from longca import Device, masks, registry
from longca.testing import verify


@pytest.mark.parametrize("kernel", ["online+naive", "online+sdpa", "naive+online", "sdpa+online"])
def test_it_is_either_half_of_a_pair(kernel: str) -> None:
    for mask in (masks.build("causal", 200), masks.build("shared_question", 200, documents=[70, 1, 100, 29])):
        assert verify(kernel, mask, device=Device("cpu")).passed


def test_the_records_of_a_pair_name_both_distributions() -> None:
    assert [plugin.distribution for plugin in registry().providers("online+naive")] == ["longca-example", "longca-core"]
