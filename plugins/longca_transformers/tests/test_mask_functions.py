"""A mask function that is known by its name gives the mask that evaluating it gives; others are evaluated."""

import pytest
import torch

from longca import masks
from longca.errors import UnsupportedError
from longca_transformers import mask_functions
from longca_transformers.layer_masks import make_layer_mask
from longca_transformers.mask_functions import UnknownFunctionError, evaluated, known

from .models import transformers

functions = transformers.masking_utils
CPU, TOKENS = torch.device("cpu"), 21
IDS = torch.tensor([[0] * 6 + [1] * 10 + [2] * 5, [0] * 21])
POSITIONS = torch.tensor([[*range(6), *range(10), *range(3, 8)], [*range(21)]])
LEFT = torch.tensor([0, 4])
GROUPS = torch.tensor([[-1] * 3 + [0] * 5 + [-1] * 4 + [1] * 9, [-1] * 21])
PADDING = torch.arange(TOKENS) >= LEFT[:, None]


def made_of(batch, keys, queries, q_offset, kv_offset, function, marks=None):
    return make_layer_mask(batch, keys, function, queries, q_offset, kv_offset, marks)


def chunks():
    return functions.chunked_causal_mask_function(5, LEFT)


CASES = {
    "causal": lambda: functions.causal_mask_function,
    "window": lambda: functions.sliding_window_causal_mask_function(4),
    "chunks": chunks,
    "padding": lambda: functions.and_masks(functions.causal_mask_function, functions.padding_mask_function(PADDING)),
    "packed": lambda: functions.and_masks(functions.causal_mask_function, functions.packed_sequence_mask_function(IDS)),
    "either": lambda: functions.or_masks(functions.sliding_window_overlay(2), functions.causal_mask_function),
}
if hasattr(functions, "packed_sequence_compatibility_function"):
    CASES |= {
        "bidirectional": lambda: functions.sliding_window_bidirectional_mask_function(3),
        "blockwise": lambda: functions.or_masks(functions.causal_mask_function, functions.blockwise_overlay(GROUPS)),
        "packed window": lambda: functions.packed_sequence_compatibility_function(
            functions.sliding_window_causal_mask_function(4), POSITIONS, IDS
        ),
        "packed chunks": lambda: functions.packed_sequence_compatibility_function(
            functions.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.long)), POSITIONS, IDS
        ),
    }


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_a_known_function_is_the_mask_that_evaluating_it_gives(case, row):
    function = CASES[case]()
    mask = known(function, row, TOKENS)
    assert mask == evaluated(function, row, range(TOKENS), range(TOKENS), CPU)
    assert mask_functions.agrees(mask, function, row, CPU)


def own(batch_idx, head_idx, q_idx, kv_idx):
    """A function that nobody knows: causal, and every third key is hidden."""
    return (kv_idx <= q_idx) & (kv_idx % 3 != 2)


def test_an_unknown_function_is_evaluated():
    with pytest.raises(UnknownFunctionError, match="own"):
        known(own, 0, TOKENS)
    made = made_of(2, TOKENS, TOKENS, 0, 0, functions.and_masks(own, functions.sliding_window_overlay(6)), None)
    for mask in made.masks:
        assert mask == evaluated(own, 0, range(TOKENS), range(TOKENS), CPU) & known(
            functions.sliding_window_overlay(6), 0, TOKENS
        )


def test_a_function_that_means_something_else_than_its_name_is_evaluated():
    made_of(1, TOKENS, TOKENS, 0, 0, functions.causal_mask_function)  # is no warrant for others of its name

    def causal_mask_function(batch_idx, head_idx, q_idx, kv_idx):
        return kv_idx < q_idx

    causal_mask_function.__module__, causal_mask_function.__qualname__ = functions.__name__, "causal_mask_function"
    (mask,) = made_of(1, TOKENS, TOKENS, 0, 0, causal_mask_function).masks
    assert mask.area == TOKENS * (TOKENS - 1) // 2


def test_a_function_of_too_many_pairs_is_refused():
    with pytest.raises(UnsupportedError, match=r"own is not known, .*using\(mask\)"):
        evaluated(own, 0, range(2**17), range(2**17), CPU)


def test_tokens_of_one_group_that_are_no_neighbours_are_evaluated():
    ids = torch.tensor([[0, 1, 0, 1]])
    function = functions.packed_sequence_mask_function(ids)
    with pytest.raises(UnknownFunctionError, match="no neighbours"):
        known(function, 0, 4)
    assert made_of(1, 4, 4, 0, 0, function).masks[0].area == 8


def test_queries_after_cached_keys_are_the_last_rows():
    made = made_of(1, 12, 4, 8, 0, functions.causal_mask_function)
    assert made.masks[0] == masks.build("causal", 4, seqlen_k=12)
    made = made_of(1, 7, 4, 8, 5, functions.sliding_window_causal_mask_function(4))
    assert made.masks[0].dense().tolist() == [[0 <= 8 + i - (5 + j) < 4 for j in range(7)] for i in range(4)]


def test_a_batch_shares_a_mask_only_if_its_function_is_the_same_for_all_rows():
    alike = made_of(3, TOKENS, TOKENS, 0, 0, functions.sliding_window_causal_mask_function(4)).masks
    assert alike[0] is alike[2]
    apart = made_of(2, TOKENS, TOKENS, 0, 0, chunks()).masks
    assert apart[0] != apart[1]
