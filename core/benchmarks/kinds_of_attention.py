"""The kinds of attention that `training_step.py` compares. Shapes are those of `small_llama.py`."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from small_llama import Batch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import longca
from longca import masks

DENSE_BYTES = 2**34


def as_batch(x: Tensor) -> Tensor:
    """[S, H, D] as [1, H, S, D]."""
    return x.transpose(0, 1)[None]


class Kind(ABC):
    """A kind of attention.

    Args:
        asked: The sizes of the model.
        device: The device.
        dtype: The dtype of the model.
    """

    def __init__(self, asked: argparse.Namespace, device: torch.device, dtype: torch.dtype) -> None:
        self.asked, self.device, self.dtype = asked, device, dtype

    @abstractmethod
    def prepare(self, batch: Batch) -> Any:
        """The mask of a step."""

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        """The output: [S, Hq, D]."""


class LongCA(Kind):
    """`longca.attention` with the kernel that is predicted to be fastest."""

    def prepare(self, batch: Batch) -> masks.Mask:
        """The mask of the documents."""
        return masks.build("causal_document", self.asked.seqlen, documents=batch.lengths)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: masks.Mask) -> Tensor:
        """The output of `auto`."""
        out = longca.attention(q, k, v, mask, kernel="auto")
        assert isinstance(out, Tensor)
        return out


class Flex(Kind):
    """FlexAttention. The documents lie in one tensor, and the mask is one function, so that no step recompiles."""

    def __init__(self, asked: argparse.Namespace, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(asked, device, dtype)
        documents = self.documents = torch.zeros(asked.seqlen, dtype=torch.int64, device=device)

        def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (i >= j) & (documents[i] == documents[j])

        self.sees = sees
        self.create = torch.compile(create_block_mask, backend=asked.backend)

    def prepare(self, batch: Batch) -> Any:
        """The block mask."""
        self.documents.copy_(batch.documents)
        return self.create(self.sees, None, None, self.asked.seqlen, self.asked.seqlen, device=self.device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        """The output of the fused kernel."""
        out = flex_attention(as_batch(q), as_batch(k), as_batch(v), block_mask=mask, enable_gqa=True)
        assert isinstance(out, Tensor)
        return out[0].transpose(0, 1)


class DenseSDPA(Kind):
    """SDPA with a dense mask, which all layers share. The fused kernel that takes a mask takes no grouped heads."""

    def __init__(self, asked: argparse.Namespace, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(asked, device, dtype)
        if (needed := asked.seqlen**2 * dtype.itemsize) > DENSE_BYTES:
            raise ValueError(f"a dense mask of {needed / 2**30:.0f} GiB; at most {DENSE_BYTES / 2**30:.0f} are made")

    def prepare(self, batch: Batch) -> Tensor:
        """0 for a visible pair, and −∞ for a hidden one: [S, S]."""
        places, of = torch.arange(self.asked.seqlen, device=self.device), batch.documents
        hidden = (places[:, None] < places) | (of[:, None] != of)
        return torch.zeros_like(hidden, dtype=self.dtype).masked_fill_(hidden, -torch.inf)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """The output for repeated KV heads."""
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        return scaled_dot_product_attention(as_batch(q), as_batch(k), as_batch(v), mask)[0].transpose(0, 1)


class SDPAByDocument(Kind):
    """SDPA with a causal call for each document, which breaks the graph: the number of calls changes."""

    def prepare(self, batch: Batch) -> tuple[int, ...]:
        """The documents' lengths."""
        return batch.lengths

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Sequence[int]) -> Tensor:
        """The outputs of all documents."""
        qs, ks, vs = (as_batch(x).split(list(mask), dim=2) for x in (q, k, v))
        each = zip(qs, ks, vs, strict=True)
        outs = [scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) for q, k, v in each]
        return torch.cat(outs, dim=2)[0].transpose(0, 1)


KINDS: dict[str, type[Kind]] = {
    "longca": LongCA,
    "flex": Flex,
    "sdpa_dense": DenseSDPA,
    "sdpa_documents": SDPAByDocument,
}
