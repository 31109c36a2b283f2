"""Loading blocks of tensors [tokens, heads, head_dim] in a Triton kernel: by pointers, or by descriptors.

A kernel is given each tensor as `descriptors.sources` makes it, and TMA says which of the two it is.
"""

import triton
import triton.language as tl

__all__ = ["head_offset", "load_tokens"]


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
        source: The tensor's descriptor where TMA is set, else its pointer.
        first: The first token, for a descriptor; the others follow it.
        tokens: All of them, for a pointer, in any order: [BLOCK].
        offset: What `head_offset` gave.
        stride: Elements from a token to the next.
        length: Tokens of the tensor.
    """
    if TMA:
        block = source.load([first, offset])
    else:
        offsets = tokens.to(tl.int64)[:, None] * stride + tl.arange(0, HEAD_DIM)[None, :]
        block = tl.load(source + offset + offsets, mask=tokens[:, None] < length, other=0.0)
    return block
