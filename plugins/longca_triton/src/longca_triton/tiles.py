"""Triton functions that load and store blocks of tensors [tokens, heads, head_dim]: by pointers, or by descriptors.

`descriptors.sources` makes the source of each tensor. The constant TMA says whether a source is a descriptor.
"""

import triton
import triton.language as tl

__all__ = ["head_offset", "load_rows", "load_tokens", "load_vector", "store_rows"]


@triton.jit
def head_offset(head, stride, TMA: tl.constexpr):
    """Elements from the start of a token's row to a head: a column of a descriptor, else 64 bits for a pointer."""
    if not TMA:
        head = head.to(tl.int64)
    return head * stride


@triton.jit
def load_tokens(source, first, tokens, offset, stride, length, HEAD_DIM: tl.constexpr, TMA: tl.constexpr):
    """Some tokens of one head: [BLOCK, HEAD_DIM], zeros from `length` on.

    Args:
        source: The tensor's descriptor if TMA is set, else its pointer.
        first: The first token. A descriptor loads the tokens that follow it.
        tokens: All tokens, in any order: [BLOCK]. A pointer loads these.
        offset: The result of `head_offset`.
        stride: Elements from a token to the next.
        length: Tokens of the tensor.
    """
    if TMA:
        block = source.load([first, offset])
    else:
        offsets = tokens.to(tl.int64)[:, None] * stride + tl.arange(0, HEAD_DIM)[None, :]
        block = tl.load(source + offset + offsets, mask=tokens[:, None] < length, other=0.0)
    return block


@triton.jit
def load_rows(source, row, offset, stride, length, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, TMA: tl.constexpr):
    """The tokens `row` … `row` + BLOCK of one head, as `load_tokens` returns them."""
    return load_tokens(source, row, row + tl.arange(0, BLOCK), offset, stride, length, HEAD_DIM, TMA)


@triton.jit
def store_rows(target, row, offset, stride, length, block):
    """Writes a block [BLOCK, HEAD_DIM] to the tokens `row` … of one head, in the target's dtype, up to `length`."""
    rows = row + tl.arange(0, block.shape[0])
    offsets = rows.to(tl.int64)[:, None] * stride + tl.arange(0, block.shape[1])[None, :]
    tl.store(target + offset + offsets, block.to(target.dtype.element_ty), mask=rows[:, None] < length)


@triton.jit
def load_vector(
    source, head, first, tokens, padded, stop, OTHER: tl.constexpr, BOUNDED: tl.constexpr, TMA: tl.constexpr
):
    """One number for each of some tokens, of one head of a float32 [heads, padded]: [BLOCK].

    A descriptor puts the values into shared memory, and each thread takes the values that its scores need. With
    pointers every thread loads its own copy.

    Args:
        source: The vector's descriptor if TMA is set, else its pointer.
        head: The head.
        first: The first token.
        tokens: All tokens: [BLOCK]. Unless BOUNDED is set, they follow the first.
        padded: Elements from a head to the next.
        stop: One past the last token to load.
        OTHER: The value of tokens from `stop` on.
        BOUNDED: Whether some tokens may lie past `stop`. If not, `stop` is ignored.
    """
    if TMA:
        values = tl.reshape(source.load([head, first]), [tokens.shape[0]])
        if BOUNDED:
            values = tl.where(tokens < stop, values, OTHER)
    elif BOUNDED:
        values = tl.load(source + head_offset(head, padded, False) + tokens, mask=tokens < stop, other=OTHER)
    else:
        values = tl.load(source + head_offset(head, padded, False) + first + tl.arange(0, tokens.shape[0]))
    return values
