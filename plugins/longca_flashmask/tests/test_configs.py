"""The table of configurations: complete, and of shapes that the kernels take."""

from __future__ import annotations

import pytest

from longca_flashmask import FLASHMASK
from longca_flashmask.configs import choose


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (13, 0)])
@pytest.mark.parametrize("head_dim", FLASHMASK.offers[0].head_dims)
def test_every_head_dimension_has_configurations_on_every_device(head_dim, capability):
    configs = choose(head_dim, capability)
    for config in (configs.forward, configs.dkdv, configs.dq):
        assert config.block_m in (32, 64, 128, 256)
        assert config.block_n in (32, 64, 128, 256)
        assert config.num_warps in (4, 8)
        assert config.num_stages >= 1
        assert not config.tma or capability >= (9, 0)
