"""fa4's bit tests, traced with Python integers: a thread finds exactly the visible elements."""

import numpy as np
import pytest
import torch

from longca import masks
from longca.masks import Slice, SliceMask
from longca_flashattn.fa4_intervals import _table

MASKS = {
    "one interval": masks.build("causal_document", 384, documents=[100, 3, 281]),
    "two intervals": masks.build("shared_question", 384, documents=[70, 130, 1, 183]),
    "three intervals": SliceMask([Slice(0, 384, k, k + 40, -300, 200) for k in (3, 100, 222)], 384, 384),
}


TILES = [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)]


@pytest.mark.parametrize(("by_key", "size"), [(False, (128, 128)), (True, (64, 128)), (True, (128, 128))])
@pytest.mark.parametrize("name", MASKS)
def test_what_is_visible(traced, asked_as_in_the_kernel, name, by_key, size):
    mask = MASKS[name]
    table = _table(mask.column_pieces if by_key else mask.row_pieces, torch.device("cpu"))
    columns = size[0 if by_key else 1] // 4
    mod = traced("interval_mod").IntervalMod(table.shape[1] // 2, by_key=by_key, columns=columns)
    visible = mask.dense()
    for query, key in ((row * size[0], column * size[1]) for row, column in TILES):
        found = asked_as_in_the_kernel(mod, (table.data_ptr(),), 0, query, key, size, by_key=by_key)
        assert np.array_equal(found, visible[query : query + size[0], key : key + size[1]])
