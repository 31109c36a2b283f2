"""Which layers have to be merged, beside the queries to which several layers show something."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longca import masks
from longca.masks import Form
from longca_advice.work import TILE, merged_layers, work_of

from ..masks import predicates
from .test_work import STATIC, static_masks


@pytest.mark.parametrize("pattern", STATIC)
@settings(max_examples=15)
@given(data=st.data())
def test_layers_that_share_queries_are_merged_unless_copies_of_keys_spare_it(pattern, data):
    mask = data.draw(static_masks(pattern))
    layers = mask.head(0).layers
    shown = np.stack([predicates.showings([one], mask.seqlen_q, mask.seqlen_k).any(1) for one in layers])
    sharing = int((shown & (shown.sum(0) > 1)).any(1).sum())
    assert merged_layers(mask.head(0)) in (0, sharing)


@pytest.mark.parametrize(
    ("pattern", "factors", "merged"),
    [
        ("prefix_lm_causal", {"prefix": 300}, 0),  # alone on their rows
        ("causal_blockwise", {"documents": [512, 512, 1024]}, 0),
        ("shared_question", {"documents": [512, 512, 1024]}, 0),  # two copies of some keys at most
        ("global_sliding_window", {"global_tokens": 300, "window": 100}, 2),  # one layer is alone on its rows
    ],
)
def test_rows_of_merged_layers_are_work(pattern, factors, merged):
    mask = masks.build(pattern, 2048, **factors)
    assert mask.head(0).layers[1:]
    assert work_of(mask, Form.LAYERS).merged == merged * 2048 / TILE
    assert work_of(mask, Form.ROW_INTERVALS).merged == 0
