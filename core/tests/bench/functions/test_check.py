"""`longca.testing.check`: right functions pass in every shape, and each known mistake is named."""

import sys
from pathlib import Path

import pytest
import torch

import longca
from longca import masks
from longca.errors import RequestError, UnknownNameError, VerificationError
from longca.masks import Slice, SliceMask
from longca.testing import Mistake, check
from longca_bench.functions.user_function import load

FOLDER = Path(__file__).parent
DOCUMENTS = masks.build("causal_document", 96, documents=(30, 1, 65))
WINDOW = masks.build("causal_sliding_window", 96, window=20)
#: A wrong function, the mask that shows its mistake, and the mistake.
WRONG = {
    "joins_documents": (DOCUMENTS, Mistake.DOCUMENTS),
    "widens_window": (WINDOW, Mistake.WINDOW),
    "ignores_window": (WINDOW, Mistake.NO_WINDOW),
    "aligns_top_left": (masks.build("causal", 60, seqlen_k=96), Mistake.ALIGNMENT),
    "hides_own_key": (masks.build("causal", 96), Mistake.DIAGONAL),
    "scales_by_width": (DOCUMENTS, Mistake.SCALE),
    "mixes_heads": (DOCUMENTS, Mistake.HEADS),
    "leaves_nan": (SliceMask([Slice(0, 60, 0, 90)], 96, 96), Mistake.EMPTY_ROWS),
    "averages_nothing": (SliceMask([Slice(0, 60, 0, 90)], 96, 96), Mistake.EMPTY_ROWS),
    "misreads_strides": (DOCUMENTS, Mistake.STRIDES),
    "views_heads": (DOCUMENTS, Mistake.STRIDES),
    "transposes_mask": (DOCUMENTS, Mistake.TRANSPOSED),
    "ignores_mask": (WINDOW, Mistake.IGNORED),
    "computes_in_half": (DOCUMENTS, Mistake.PRECISION),
    "sums_without_maximum": (DOCUMENTS, Mistake.RANGE),
    "merges_without_maximum": (masks.build("full", 96), Mistake.RANGE),
    "overflows_float16": (DOCUMENTS, Mistake.RANGE),
    "keeps_mask": ("causal_document", Mistake.KEPT_MASK),
}


def function(name):
    sys.path.insert(0, str(FOLDER))
    try:
        return load(f"wrong_functions:{name}")
    finally:
        sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_named(name):
    mask, mistake = WRONG[name]
    with pytest.raises(VerificationError, match=rf"^{name} is wrong on ") as wrong:
        check(function(name), mask)
    assert mistake.says in str(wrong.value)
    assert not [other for other in Mistake if other is not mistake and other.says in str(wrong.value)]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_large_scores_keep_a_right_function_right(dtype):
    found = check(function("right"), DOCUMENTS, dtype=dtype)
    assert [each.label for each in found.masks] == [DOCUMENTS.label, f"{DOCUMENTS.label}, outliers"]


@pytest.mark.parametrize(("name", "limited"), [("in_float32", False), ("overflows_float16", True), ("right", True)])
def test_products_beyond_float16_are_a_limit_of_a_float16_function_that_forms_them(name, limited):
    found = check(function(name), DOCUMENTS, dtype="float16")
    assert found.passed
    assert any("float16's range" in limit for limit in found.limits) is limited


@pytest.mark.parametrize(
    ("name", "rotary", "detail"),
    [
        ("turns", None, "Say so: --rotary 10000"),
        ("right", 10000.0, "q and k are not turned"),
        ("turns_neighbours", 10000.0, "neighbouring elements are pairs"),
    ],
)
def test_rotary_positions_are_applied_as_asked(name, rotary, detail):
    with pytest.raises(VerificationError, match=detail) as wrong:
        check(function(name), DOCUMENTS, rotary=rotary)
    assert Mistake.ROTARY.says in str(wrong.value)


def test_a_batch_that_is_mixed_is_named():
    with pytest.raises(VerificationError, match=Mistake.BATCH.says):
        check(function("mixes_batch"), DOCUMENTS, shape="bhsd")


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("right", "thd", "float64"),
        ("sdpa", "bhsd", "bfloat16"),
        ("sdpa_bshd", "bshd", "float32"),
    ],
)
def test_right_functions_pass_in_every_shape_and_dtype(name, shape, dtype):
    found = check(function(name), "causal_document", shape=shape, dtype=dtype, head_dim=16)
    assert found.passed
    assert {finding.tensor for each in found.masks for finding in each.findings} == {"out", "dq", "dk", "dv"}


def test_a_right_function_passes_on_all_masks():
    labels = {each.label for each in check(function("right"), head_dim=16).masks}
    assert {"causal 203 × 77 (empty rows)", "rows that see nothing", "one token", "prefix_lm_document"} <= labels


def test_a_function_with_rotary_positions_passes():
    assert check(function("turns"), "causal_document", rotary=10000.0, head_dim=16).passed


def test_a_mask_is_given_as_longca_has_it():
    def ours(q, k, v, mask, *, softmax_scale, unknown=3):
        return longca.attention(q, k, v, mask, kernel="naive", softmax_scale=softmax_scale)

    found = check(ours, "causal_document", softmax_scale=0.3)
    assert [each.label for each in found.masks][:3] == [
        "causal_document", "causal_document of 129", "causal_document of 257",
    ]  # fmt: skip


def test_flash_shaped_parameters_describe_documents_and_windows():
    def ours(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, window_size):
        return longca.varlen(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=causal, window_size=window_size,
            kernel="naive",
        )  # fmt: skip

    labels = {each.label for each in check(ours, head_dim=16).masks}
    assert {"full_document", "causal_document", "causal_sliding_window", "causal 77 × 203"} <= labels
    assert not [label for label in labels if label.startswith(("prefix", "blocks"))]


def test_the_wrong_gradient_alone_is_a_failure():
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad / 2

    def halves(q, k, v, attn_mask, scale):
        return function("right")(q, k, Halved.apply(v), attn_mask, scale)

    with pytest.raises(
        VerificationError, match=r"No known mistake gives the results on .*Worst row: dv: error"
    ) as wrong:
        check(halves, DOCUMENTS)
    assert not [mistake for mistake in Mistake if mistake.says in str(wrong.value)]
    assert check(halves, DOCUMENTS, direction="forward").passed


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("detaches", "no gradient of detaches reaches q; wrap a kernel in a torch.autograd.Function"),
        ("forward_only", "no gradient reaches the output of forward_only; wrap a kernel"),
        ("returns_list", "returns_list returned a int; return the output as a tensor"),
        ("returns_flat", r"returned \[96, 256\] for queries of \[96, 4, 64\]; return \[tokens, heads, head dim\]"),
        ("returns_wide", "returned torch.float64 on cpu for torch.float32 on cpu; cast the output back"),
        ("raises", "raises raised RuntimeError: no such device"),
    ],
)
def test_a_call_that_gives_no_result_is_explained(name, said):
    with pytest.raises(VerificationError, match=said):
        check(function(name), DOCUMENTS)


def test_inputs_that_change_are_a_failure():
    with pytest.raises(VerificationError, match="writes_to_q changes q in place"):
        check(function("writes_to_q"), DOCUMENTS, direction="forward")


def test_heads_and_tokens_that_change_places_are_named():
    def swaps(q, k, v, attn_mask):
        return function("sdpa")(q, k, v, attn_mask).transpose(1, 2)

    with pytest.raises(VerificationError, match="whose heads and tokens have changed places"):
        check(swaps, DOCUMENTS, shape="bhsd")


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("needs_bias", RequestError, "needs bias, which LongCA does not give. Known parameters are mask, attn_mask"),
        ("takes_two", RequestError, "takes_two takes 2 tensors; wrap it, so that the first three parameters are q, k"),
        ("says_nothing", RequestError, "no parameter of says_nothing says which keys a query sees; name its mask"),
        ("NUMBER", RequestError, "of type int; give a function of q, k and v"),
        ("torch.nn.Linear", RequestError, "Linear is a class; give a function"),
        ("torch.dot", RequestError, "the parameters of dot are not known to Python; wrap it"),
        ("nothing", UnknownNameError, "unknown function of wrong_functions 'nothing'"),
    ],
)
def test_what_cannot_be_called_is_refused(text, kind, said):
    with pytest.raises(kind, match=said):
        check(function(text))


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"shape": "sbhd"}, RequestError, "the shape is 'sbhd'; give thd, bhsd, bshd"),
        ({"rotary": 10000.0, "head_dim": 15}, RequestError, "and an even head dim"),
        ({"rotary": float("inf")}, RequestError, "give a finite base above 1"),
        ({"mask": "casual"}, UnknownNameError, "Did you mean causal"),
        ({"placement": "zigzag"}, RequestError, "without a process group; start with torchrun"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, kind, said):
    with pytest.raises(kind, match=said):
        check(function("right"), **options)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("my_module", "the function is 'my_module'; give MODULE:FUNCTION, such as my_module:attention"),
        ("no_such_module:f", "there is no module 'no_such_module' in "),
        ("broken_module:f", "the import of broken_module raised ValueError: not today"),
        ("needy_module:f", "the import of needy_module needs no_such_package, which is not installed"),
    ],
)
def test_modules_that_cannot_be_imported_are_explained(tmp_path, monkeypatch, text, said):
    (tmp_path / "broken_module.py").write_text("raise ValueError('not today')")
    (tmp_path / "needy_module.py").write_text("import no_such_package")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(RequestError) as refused:
        load(text)
    assert str(refused.value).startswith(said)
