"""Calls in the shapes of other libraries give what those libraries give, and refuse what LongCA does not compute."""

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import longca
from longca import masks
from longca.errors import RequestError
from longca.kernels import shapes


def draw(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)


def by_torch(q, k, v, dense, scale=None):
    """SDPA with a boolean mask [B or 1, 1, Sq, Sk], and its gradients. Rows that see nothing are 0."""
    out = scaled_dot_product_attention(q, k, v, attn_mask=dense, scale=scale, enable_gqa=True)
    return torch.where(dense.any(-1, keepdim=True), out, 0.0)


def check(found, wanted, inputs):
    torch.testing.assert_close(found, wanted)
    dout = torch.randn_like(wanted)
    gradients = (torch.autograd.grad(out, inputs, dout) for out in (found, wanted))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kernel", ["naive", "sdpa"])
def test_sdpa_with_one_mask_is_that_of_torch(batch, kernel):
    inputs = draw(batch, 4, 17, 16), draw(batch, 2, 17, 16), draw(batch, 2, 17, 16)
    mask = masks.build("prefix_lm_causal", 17, prefix=5)
    found = longca.sdpa(*inputs, mask, kernel=kernel, scale=0.3)
    check(found, by_torch(*inputs, torch.from_numpy(mask.dense()), 0.3), inputs)


def test_sdpa_takes_a_mask_for_each_sequence_and_fewer_queries_than_keys():
    inputs = draw(2, 4, 9, 16), draw(2, 4, 21, 16), draw(2, 4, 21, 16)
    both = [masks.build("causal", 9, seqlen_k=21), masks.build("full_sliding_window", 9, seqlen_k=21, window=3)]
    found, lse = longca.sdpa(*inputs, both, return_lse=True)
    dense = torch.stack([torch.from_numpy(mask.dense()) for mask in both])[:, None]
    check(found, by_torch(*inputs, dense), inputs)
    scores = inputs[0] @ inputs[1].mT / 4
    torch.testing.assert_close(lse, scores.masked_fill(~dense, -torch.inf).logsumexp(-1).to(lse.dtype).detach())
    assert not lse.requires_grad


@pytest.mark.parametrize(("queries", "keys"), [(8, 8), (5, 8), (8, 5)])
def test_sdpa_takes_is_causal_as_torch_means_it(queries, keys):
    inputs = draw(2, 4, queries, 16), draw(2, 2, keys, 16), draw(2, 2, keys, 24)
    dense = torch.ones(queries, keys, dtype=torch.bool).tril()
    check(longca.sdpa(*inputs, is_causal=True, enable_gqa=True), by_torch(*inputs, dense), inputs)
    check(longca.sdpa(*inputs), by_torch(*inputs, torch.ones_like(dense)), inputs)


SHAPES = [(9, 12), (12,), (1, 1, 9, 12), (3, 1, 9, 12), (3, 1, 1, 12), (4, 9, 12), (3, 4, 9, 12), (1, 4, 1, 12)]


@pytest.mark.parametrize("form", ["bool", "float"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sdpa_takes_attn_mask_as_torch_means_it(shape, form):
    compiled = shape == SHAPES[-1]
    inputs = draw(3, 4, 9, 16), draw(3, 2, 12, 16), draw(3, 2, 12, 24)
    dense = torch.rand(shape, generator=torch.Generator().manual_seed(len(shape))) < 0.6
    bias = torch.zeros(shape).masked_fill(~dense, -torch.inf)
    torch.compiler.reset()
    function = torch.compile(longca.sdpa, backend="aot_eager", fullgraph=True) if compiled else longca.sdpa
    found, lse = function(*inputs, dense if form == "bool" else bias, return_lse=True)
    check(found, by_torch(*inputs, dense.expand(3, 4, 9, 12)), inputs)
    scores = inputs[0] @ inputs[1].repeat_interleave(2, 1).mT / 4
    torch.testing.assert_close(lse, (scores + bias).logsumexp(-1).detach())


@pytest.mark.parametrize("write", [lambda x, y: x.copy_(y), lambda x, y: x.data.copy_(y)], ids=["copy_", "data"])
def test_a_mask_that_changes_in_place_is_read_again(write):
    inputs = draw(1, 2, 8, 16), draw(1, 2, 8, 16), draw(1, 2, 8, 16)
    buffer = torch.ones(8, 8, dtype=torch.bool)
    longca.sdpa(*inputs, buffer)
    write(buffer, torch.ones(8, 8).tril().bool())
    check(longca.sdpa(*inputs, buffer), by_torch(*inputs, torch.ones(8, 8).tril().bool()), inputs)


BOUNDS = [0, 7, 7, 20]


@pytest.mark.parametrize("window", [(-1, -1), (3, 0), (2, 4)])
@pytest.mark.parametrize("causal", [True, False])
def test_varlen_is_each_document_by_itself(causal, window):
    inputs = draw(20, 4, 16), draw(20, 2, 16), draw(20, 2, 16)
    bounds = torch.tensor(BOUNDS, dtype=torch.int32)
    found = longca.varlen(*inputs, bounds, bounds, 13, 13, 0.0, None, causal, window)
    mask = masks.from_cu_seqlens(BOUNDS, causal=causal, window_size=window)
    packed = [x.transpose(0, 1)[None] for x in inputs]
    wanted = by_torch(*packed, torch.from_numpy(mask.dense()))[0].transpose(0, 1)
    check(found, wanted, inputs)


def test_varlen_with_other_keys_and_tokens_behind_the_last_document():
    q, k, v = draw(9, 2, 16), draw(12, 2, 16), draw(12, 2, 16)
    found = longca.varlen(q, k, v, torch.tensor([0, 3, 7]), torch.tensor([0, 6, 11]), causal=True)
    dense = torch.zeros(9, 12, dtype=torch.bool)
    dense[:7, :11] = torch.from_numpy(masks.from_cu_seqlens([0, 3, 7], [0, 6, 11], causal=True).dense())
    wanted = by_torch(*(x.transpose(0, 1)[None] for x in (q, k, v)), dense)[0].transpose(0, 1)
    check(found, wanted, (q, k, v))


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "write", [lambda x, y: x.copy_(y), lambda x, y: x.data.copy_(y), lambda x, y: np.copyto(x.numpy(), y.numpy())]
)
def test_bounds_that_change_in_place_are_read_again(write, inference):
    with torch.inference_mode(inference):
        inputs = [draw(20, 2, 16).detach()] * 3
        bounds, others = torch.tensor(BOUNDS), torch.tensor([0, 9, 9, 20])
        longca.varlen(*inputs, bounds, causal=True)
        write(bounds, others)
        mask = masks.build("causal_document", 20, documents=[9, 11])
        assert torch.equal(longca.varlen(*inputs, bounds, causal=True), longca.attention(*inputs, mask))


def test_equal_bounds_share_a_mask_and_its_plan():
    def of(q, k=None):
        return shapes.mask_of_bounds(q, k, True, (-1, -1), 20, 20)

    bounds = torch.tensor(BOUNDS)
    assert of(bounds) is of(bounds.clone())
    assert of(bounds, bounds) is of(bounds, bounds.clone())
    assert of(bounds) is not of(bounds[[0, 1, 3]])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
@pytest.mark.parametrize("as_input", [True, False])
def test_varlen_and_sdpa_are_in_one_graph(as_input):
    inputs, bounds = (draw(20, 2, 16), draw(20, 2, 16), draw(20, 2, 16)), torch.tensor(BOUNDS)

    def attend(q, k, v, given):
        first = longca.varlen(q, k, v, given if as_input else BOUNDS, causal=True)
        return longca.sdpa(*(x.unflatten(0, (2, 10)).transpose(1, 2) for x in (first, k, v)), CAUSAL_10)

    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    check(compiled(*inputs, bounds), attend(*inputs, bounds), inputs)
    bounds.data.copy_(torch.tensor([0, 3, 9, 20]))
    check(compiled(*inputs, bounds), attend(*inputs, bounds), inputs)


X4, X3 = torch.zeros(2, 2, 8, 16), torch.zeros(8, 2, 16)
CAUSAL, CAUSAL_10 = masks.build("causal", 8), masks.build("causal", 10)
NONE = torch.zeros(8, 8)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: longca.sdpa(X3, X3, X3, CAUSAL), RequestError, r"give \[batch, heads, tokens, head dim\]"),
        (lambda: longca.sdpa(X4, X4[:1], X4, CAUSAL), RequestError, "2, 1 and 2 sequences"),
        (lambda: longca.sdpa(X4, X4, X4, [CAUSAL]), RequestError, "1 masks were given for 2 sequences"),
        (lambda: longca.sdpa(X4, X4, X4, masks.build("causal", 9)), RequestError, "mask 0 is a causal of 9 tokens"),
        (lambda: longca.sdpa(X4, X4, X4, CAUSAL, strategy="ulysses"), RequestError, "under a strategy call"),
        (lambda: longca.sdpa(X4, X4, X4, 3), RequestError, "mask is a int"),
        (lambda: longca.sdpa(X4, X4, X4, torch.ones(8, 8)), RequestError, "biases other than 0"),
        (lambda: longca.sdpa(X4, X4, X4, NONE.clone().requires_grad_()), RequestError, "a bias with a gradient"),
        (lambda: longca.sdpa(X4, X4, X4, torch.zeros(8, 9)), RequestError, r"broadcasts to \[2, 2, 8, 8\]"),
        (lambda: longca.sdpa(X4, X4, X4, NONE, is_causal=True), RequestError, "two of attn_mask, mask and is_causal"),
        (lambda: longca.sdpa(X4, X4, X4, dropout_p=0.1), RequestError, "dropout_p is 0.1"),
        (lambda: longca.varlen(X3, X3, X3, [0, 8], dropout_p=0.1), RequestError, "dropout_p asks for dropout"),
        (lambda: longca.varlen(X3, X3, X3, [0, 8], alibi_slopes=X3), RequestError, "alibi_slopes asks for biases"),
        (lambda: longca.varlen(X3, X3, X3, [0, 8], window_size=3), RequestError, r"give integers \(left, right\)"),
        (lambda: longca.varlen(X3, X3, X3, [0, 8], seqused_k=[8]), RequestError, "does not know seqused_k="),
        (lambda: longca.varlen(X3, X3, X3, [0, 8], block_table=X3), RequestError, "pages of a KV cache"),
        (lambda: longca.varlen(X3, X3, X3, [0, 9]), RequestError, "the bounds end at query 9 and key 9, and q has 8 t"),
        (lambda: longca.varlen(X3, X3[:4], X3[:4], [0, 8]), RequestError, "give cu_seqlens_k"),
    ],
)
def test_what_is_not_computed_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
