"""`longca.testing.check`: right functions pass in every shape, and each known mistake is named."""

import functools
import sys

import pytest
import torch

import longca
from longca import masks
from longca.errors import RequestError, UnknownNameError, VerificationError
from longca.masks import Slice, SliceMask
from longca.testing import check, verify
from longca_bench.functions.function_kernel import FunctionKernel, Shape
from longca_bench.functions.user_function import UserFunction, load

from . import wrong_functions
from .wrong_functions import right

CAUSAL = masks.build("causal", 96)
DOCUMENTS = masks.build("causal_document", 96, documents=(30, 1, 65))
WINDOW = masks.build("causal_sliding_window", 96, window=20)
BLIND = SliceMask([Slice(0, 60, 0, 90)], 96, 96)
JOINED, WINDOWS, DIAGONAL = "Documents are not separated", "The window is wrong", "The causal diagonal is wrong"
STRIDES, RANGE, KEPT = "Strided tensors are misread", "Large scores overflow", "The mask of an earlier call is kept"
UNKNOWN = "No known mistake explains it"
#: A wrong function, the mask that shows its mistake, and the beginning of the sentence with a part of the details.
WRONG = {
    "joins_documents": (DOCUMENTS, JOINED, ""),
    "widens_window": (WINDOW, WINDOWS, "one token too many"),
    "ignores_window": (WINDOW, WINDOWS, "there is none"),
    "aligns_top_left": (masks.build("causal", 60, seqlen_k=96), DIAGONAL, "starts in the top left corner"),
    "hides_own_key": (CAUSAL, DIAGONAL, "a query does not see its own key"),
    "ignores_mask": (CAUSAL, DIAGONAL, "a query sees all keys"),
    "misreads_strides": (DOCUMENTS, STRIDES, ""),
    "views_heads": (DOCUMENTS, STRIDES, "reshape"),
    "sums_without_maximum": (DOCUMENTS, RANGE, ""),
    "keeps_mask": ("causal_document", KEPT, ""),
    "scales_by_width": (DOCUMENTS, UNKNOWN, "Worst row: out: "),
    "mixes_heads": (DOCUMENTS, UNKNOWN, "Worst row: out: "),
    "leaves_nan": (BLIND, UNKNOWN, "Worst row: out: "),
    "averages_nothing": (BLIND, UNKNOWN, "Worst row: out: "),
    "computes_in_half": (DOCUMENTS, UNKNOWN, "Worst row: out: "),
    "halves_dv": (DOCUMENTS, UNKNOWN, "Worst row: dv: "),
    "repeats_its_lse": (DOCUMENTS, UNKNOWN, "Worst row: lse: "),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_function_is_named_with_its_mistake_or_its_worst_row(name):
    mask, mistake, detail = WRONG[name]
    with pytest.raises(VerificationError, match=rf"^{name} is wrong on \d+ of \d+ masks: {mistake}") as wrong:
        check(getattr(wrong_functions, name), mask)
    assert detail in str(wrong.value)
    assert str(wrong.value).count("Shown by") == 1
    if name == "halves_dv":
        assert check(wrong_functions.halves_dv, mask, direction="forward").passed


def test_sequences_of_a_batch_are_separate():
    with pytest.raises(VerificationError, match="Worst row: out: error"):
        check(wrong_functions.mixes_batch, DOCUMENTS, shape="bhsd")


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [("right", "thd", "float64"), ("sdpa", "bhsd", "bfloat16"), ("sdpa_bshd", "bshd", "float32")],
)
def test_right_functions_pass_in_every_shape_and_dtype(name, shape, dtype):
    found = check(getattr(wrong_functions, name), "causal_document", shape=shape, dtype=dtype, head_dim=16)
    assert {finding.tensor for each in found.masks for finding in each.findings} == {"out", "dq", "dk", "dv"}


def test_a_right_function_passes_on_all_masks():
    labels = {each.label for each in check(right, head_dim=16).masks}
    assert {"causal 203 × 77 (empty rows)", "rows that see nothing", "one token", "prefix_lm_document"} <= labels


def test_a_mask_is_given_as_longca_has_it():
    def ours(q, k, v, mask, *, softmax_scale, unknown=3):
        return longca.attention(q, k, v, mask, kernel="naive", softmax_scale=softmax_scale)

    with pytest.raises(VerificationError):
        check(ours, "causal_document", softmax_scale=0.3, softcap=2.0)
    found = check(ours, "causal_document", softmax_scale=0.3)
    assert [each.label for each in found.masks][:3] == [
        "causal_document", "causal_document of 129", "causal_document of 263",
    ]  # fmt: skip


def test_flash_shaped_parameters_describe_documents_and_windows():
    def ours(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, window_size, softcap):
        return longca.varlen(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=causal, window_size=window_size,
            softcap=softcap, kernel="naive",
        )  # fmt: skip

    check(ours, "causal_document", head_dim=16, softcap=2.0)

    labels = {each.label for each in check(ours, head_dim=16).masks}
    assert {"full_document", "causal_document", "causal_sliding_window", "causal 77 × 203"} <= labels
    assert not [label for label in labels if label.startswith(("prefix", "blocks"))]


@pytest.mark.parametrize(("name", "shape"), [("with_lse", "thd"), ("with_lse_bhsd", "bhsd")])
def test_a_function_with_a_log_sum_exp_is_a_right_kernel(name, shape):
    kernel = FunctionKernel(UserFunction.of(getattr(wrong_functions, name)), Shape.named(shape))
    assert verify(kernel, DOCUMENTS).passed
    with pytest.raises(VerificationError, match="is wrong: lse"):
        verify(FunctionKernel(UserFunction.of(right), Shape.named("thd")), DOCUMENTS)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("detaches", "no gradient of detaches reaches q; wrap a kernel in a torch.autograd.Function"),
        ("forward_only", "no gradient reaches the output of forward_only; wrap a kernel"),
        ("returns_list", "returns_list returned a int; return the output as a tensor"),
        ("returns_flat", r"returned \[96, 256\] for queries of \[96, 4, 64\]; return \[tokens, heads, head dim\]"),
        ("returns_wide", "returned torch.float64 on cpu for torch.float32 on cpu; cast the output back"),
        ("raises", "raises raised RuntimeError: no such device"),
        ("exits_politely", "raised SystemExit: 3. Shown by"),
        ("writes_to_q", "writes_to_q changes q in place"),
    ],
)
def test_a_call_that_gives_no_result_is_explained(name, said):
    with pytest.raises(VerificationError, match=said):
        check(getattr(wrong_functions, name), DOCUMENTS)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("needs_bias", RequestError, "needs bias, which LongCA does not give. Known parameters are mask, attn_mask"),
        ("takes_two", RequestError, "the first three parameters of takes_two must be q, k and v; wrap it"),
        ("Attention.attend", RequestError, "the first three parameters of attend must be q, k and v"),
        ("says_nothing", RequestError, "no parameter of says_nothing says which keys a query sees; name its mask"),
        ("NUMBER", RequestError, "of type int; give a function of q, k and v"),
        ("torch.nn.Linear", RequestError, "Linear is a class; give a function"),
        ("torch.dot", RequestError, "the parameters of dot are not known to Python; wrap it"),
        ("nothing", UnknownNameError, "unknown function of .*wrong_functions 'nothing'"),
    ],
)
def test_what_cannot_be_called_is_refused(text, kind, said):
    with pytest.raises(kind, match=said):
        check(load(f"{wrong_functions.__name__}:{text}"))


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"shape": "sbhd"}, RequestError, "the shape is 'sbhd'; give thd, bhsd, bshd"),
        ({"mask": "casual"}, UnknownNameError, "Did you mean causal"),
        ({"placement": "zigzag"}, RequestError, "without a process group; start with torchrun"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, kind, said):
    with pytest.raises(kind, match=said):
        check(right, **options)


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
    with pytest.raises(RequestError, match=said):
        load(text)


class Module(torch.nn.Module):
    def forward(self, q, k, v, attn_mask, scale):
        return right(q, k, v, attn_mask, scale)


UNSCALED = functools.partial(right, scale=1.0)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (UNSCALED, ("attn_mask",)),
        (functools.partial(wrong_functions.factor_first, 1.0), ("attn_mask", "scale")),
        (Module(), ("attn_mask", "scale")),
        (torch.compile(Module(), backend="eager"), ("attn_mask", "scale")),
    ],
)
def test_bound_parameters_keep_their_values(function, parameters):
    assert UserFunction.of(function).parameters == parameters
    scale = None if "scale" in parameters else 1.0
    assert check(function, CAUSAL, head_dim=16, direction="forward", softmax_scale=scale).passed
