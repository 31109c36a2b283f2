"""The plugin as LongCA sees it, with and without cuDNN's frontend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longca import Device, Problem, masks
from longca_cudnn import supports_mask


@pytest.mark.parametrize("capability", [(8, 0), (12, 0)])
def test_one_document_that_takes_a_ragged_graph_needs_a_ragged_backward(capability):
    window = masks.build("full_sliding_window", 203, seqlen_k=77, window=40)
    refused = [window, masks.build("full", 1)]
    taken = [
        masks.build("causal", 203, seqlen_k=77),
        masks.build("full_sliding_window", 77, seqlen_k=203, window=40),
        masks.SliceMask([], 5, 0),
        masks.PATTERNS["causal"],
    ]
    here, elsewhere = Device("cuda", capability), Device("cuda", (9, 0))
    for mask in refused:
        problem = Problem(mask=mask, heads_q=4, device=here, direction="backward")
        verdict = supports_mask("cudnn", problem)
        assert [reason.code for reason in verdict.reasons] == ["lengths"]
        assert supports_mask("cudnn", replace(problem, direction="forward")) is None
        assert supports_mask("cudnn", replace(problem, device=elsewhere)) is None
    for mask in taken:
        assert supports_mask("cudnn", Problem(mask=mask, heads_q=4, device=here, direction="backward")) is None
