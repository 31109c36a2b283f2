"""Configurations, and which of three a device's shared memory allows."""

from __future__ import annotations

import pytest

from longca_triton.config import Config, by_shared_memory


def test_what_a_launch_passes_on():
    config = Config(128, 64, 8, 3)
    assert config.shape == (128, 64)
    assert config.options == {"num_warps": 8, "num_stages": 3, "enable_fp_fusion": True}
    assert not config.tma


@pytest.mark.parametrize(
    ("capability", "size"),
    [
        ((8, 0), "medium"),
        ((8, 6), "small"),
        ((8, 7), "medium"),
        ((8, 9), "small"),
        ((9, 0), "large"),
        ((10, 0), "large"),
        ((10, 3), "large"),
        ((12, 0), "small"),
    ],
)
def test_shared_memory(capability, size):
    assert by_shared_memory(capability, large="large", medium="medium", small="small") == size
