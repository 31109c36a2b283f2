import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longca.masks import Form
from longca.masks.cutting import check_ranges
from longca.masks.stack import MaskStack

from .strategies import any_cases, ranges

COUNTED = (Form.ROW_INTERVALS, Form.COLUMN_INTERVALS, Form.LAYERS)


def parts(data, seqlen, many):
    return [check_ranges(data.draw(ranges(seqlen)), seqlen, "query") for _ in range(many)]


@given(any_cases(), st.data())
def test_a_stack_of_cuts_answers_as_each_cut_does(case, data):
    whole = case.mask.head(0)
    q_parts, k_parts = parts(data, whole.seqlen_q, 3), parts(data, whole.seqlen_k, 2)
    pairs = np.array([(q, k) for q in (2, 0, 1) for k in range(2)])
    stack = MaskStack.of_cuts(whole, q_parts, k_parts, pairs)
    cuts = [whole.cut(q_parts[q].tolist(), k_parts[k].tolist()) for q, k in pairs]
    assert len(stack) == len(cuts)
    assert stack.areas.tolist() == [cut.area for cut in cuts]
    for index, cut in enumerate(cuts):
        assert stack.mask(index) == cut
        assert stack.mask(index).array.tolist() == cut.array.tolist()
        assert [stack.mask(index).admits(form) for form in Form] == [cut.admits(form) for form in Form]
        assert stack.mask(index).tile_efficiency(2, 2) == cut.tile_efficiency(2, 2)
        assert stack.mask(index).tile_efficiency(2, 4) == cut.tile_efficiency(2, 4)
        assert [stack.mask(index).count(form) for form in COUNTED] == [cut.count(form) for form in COUNTED]
    for form in Form:
        assert stack.admits(form).tolist() == [cut.admits(form) for cut in cuts], form
    for most in (1, 2, 3):
        for form in COUNTED[:2]:
            assert stack.at_most(form, most).tolist() == [cut.count(form) <= most for cut in cuts], (form, most)
        few, unsettled = (found.tolist() for found in stack.layer_bounds(most))
        fits = [few[at] or (unsettled[at] and stack.has_layers(at, most)) for at in range(len(cuts))]
        assert fits == [cut.count(Form.LAYERS) <= most for cut in cuts], most


def sums(blocks):
    """Full and partial tiles, rows that have any, and the most in a row and in a column."""
    each = []
    for runs in (blocks.by_query, blocks.by_key):
        counts = np.zeros((2, runs.num_rows), int)
        for kind, (row, start, stop) in [(0, run) for run in runs.full] + [(1, run) for run in runs.partial]:
            counts[kind, row] += stop - start
        each.append(counts)
    rows = each[0].sum(axis=0)
    return [*each[0].sum(axis=1), np.count_nonzero(rows), rows.max(initial=0), each[1].sum(axis=0).max(initial=0)]


@given(st.lists(any_cases(), min_size=1, max_size=4), st.sampled_from((1, 2, 4)))
def test_masks_of_any_origin_can_be_stacked(cases, tile):
    masks = [case.mask.head(0) for case in cases]
    owner = np.repeat(np.arange(len(masks)), [len(mask.array) for mask in masks])
    lengths = [np.array([getattr(mask, name) for mask in masks]) for name in ("seqlen_q", "seqlen_k")]
    stack = MaskStack(np.concatenate([mask.array for mask in masks]), owner, *lengths)
    assert stack.row_counts.tolist() == [mask.count(Form.ROW_INTERVALS) for mask in masks]
    assert stack.column_counts.tolist() == [mask.count(Form.COLUMN_INTERVALS) for mask in masks]
    assert stack.tile_sums(tile).tolist() == [sums(mask.blocks(tile, tile)) for mask in masks]
