"""The plugin as LongCA sees it: the problems that it takes, and the reasons against others."""

from __future__ import annotations

import numpy as np

import longca
from longca.masks import BlockSparseMask

H200 = longca.Device("cuda", (9, 0))


def test_lists_beyond_32_bits_are_refused():
    seqlen = 2**19
    for heads, expected in ((1, []), (8, []), (64, ["lengths"])):
        kept = np.zeros((heads, seqlen // 64, seqlen // 64), np.bool_)
        mask = BlockSparseMask(kept, range(0, seqlen + 1, 64), range(0, seqlen + 1, 64))
        problem = longca.Problem(mask=mask, heads_q=heads, device=H200)
        assert [reason.code for reason in longca.resolve("flex", problem).reasons] == expected
