"""The layers that evidence counts as merged, beside those that fa3 merges."""

import pytest

from longca import masks
from longca.masks import Form
from longca.masks.rectangles import rectangles
from longca_advice.work import merged_layers
from longca_flashattn.layers import alone_on_rows, join_keys

LAYERED = [name for name in masks.PATTERNS if not masks.PATTERNS[name].per_head]


@pytest.mark.parametrize("pattern", LAYERED)
def test_predictions_count_the_layers_that_fa3_merges(pattern):
    for seqlen in (8192, 32768):
        for seed in range(3):
            mask = masks.sample(pattern, seqlen, lengths="mix", seed=seed)
            if not mask.admits(Form.LAYERS):
                continue
            layers = mask.head(0).layers
            if rectangles(mask.head(0), len(layers)):
                assert merged_layers(mask.head(0)) == 0
                continue
            alone = alone_on_rows(layers)
            is_joined = not all(alone) and join_keys(layers) is not None
            assert merged_layers(mask.head(0)) == (0 if is_joined else alone.count(False) if len(layers) > 1 else 0)
