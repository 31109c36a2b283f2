"""Overlap: the transfers that run beside a kernel, the chunks of heads that make this possible, and the axes with
links.

On two and on four H200s, FlashAttention-3's forward of a full mask under ulysses took a fifth to two fifths longer in
two chunks than in one (`results/h200/distributed/overlap.json` and `overlap-two.json`). A full mask is therefore not
split. The probable reason is that a collective of NCCL is a kernel, which takes multiprocessors from its neighbour.
Most kernels deal out their tiles as multiprocessors become free. FlashAttention-3's forward of a full mask deals them
beforehand, and tiles of a busy multiprocessor wait for the transfer. A ring of two was faster with its one transfer
beside the step than before it. Longer rings were not measured.

Copy engines take no multiprocessors, so rings with a link run every transfer beside the step. They are fast enough that
few chunks do. At 16 K tokens on two H200s ring_all_gather was fastest in one chunk, and ulysses in two, on a full mask
and on a causal one (`overlap-copy.json`). A gather of that length has 64 MiB, and an exchange 160 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from longca.manifests import Problem, Transport
from longca.manifests.offers import DTYPE_BYTES
from longca.masks import Form

__all__ = [
    "LINKED_RANKS",
    "SLOTS",
    "Ahead",
    "axes_with_links",
    "chunks_around_rings",
    "gather_chunks",
    "is_beside",
    "takes_link",
    "ulysses_chunks",
]

Arrived = TypeVar("Arrived", covariant=True)

#: The most chunks of heads of exchanges, and of ring_all_gather.
ULYSSES_CHUNKS, GATHER_CHUNKS = 2, 4

#: Bytes of each chunk that pushes bring, at least.
CHUNK_BYTES = 2**26

#: The most slots of a window, so that one push lands while the one before is read.
SLOTS = 2

#: The most GPUs of an axis that `auto` gives a link. On four H200s it is faster in 39 of 46 calls of 32 K and 128 K
#: tokens, by up to a third, and takes at most 7 % longer (results/h200/distributed, four32k_copies, four128k_copies).
#: On four H100s it takes up to 19 % longer at 16 K tokens, and 2 % less at 64 K (results/h100/distributed, four16k and
#: usp64k). More GPUs were not measured. A mesh keeps its links for all lengths.
LINKED_RANKS = 4


def takes_link(transport: Transport, ranks: int, on_gpus: bool) -> bool:
    """Whether an axis of so many ranks gets a link, if they are on one host and have mutual access to memory."""
    if transport is Transport.AUTO:
        return on_gpus and 1 < ranks <= LINKED_RANKS
    return transport is Transport.COPY_ENGINE and ranks > 1


def axes_with_links(transport: Transport, axis_sizes: Mapping[str, int], on_gpus: bool) -> frozenset[str]:
    """The axes of a strategy that get links on one host. See `takes_link`."""
    return frozenset(axis for axis, ranks in axis_sizes.items() if takes_link(transport, ranks, on_gpus))


def is_beside(problem: Problem, nccl: bool) -> bool:
    """Whether a transfer runs while the forward of a problem is computed, and not before it."""
    return not (nccl and problem.concrete_mask.admits(Form.FULL))


def ulysses_chunks(problem: Problem, ranks: int, nccl: bool, pushes: bool) -> int:
    """Number of chunks of a rank's heads in ulysses, so that one travels while another is computed.

    Chunks are whole groups of GQA. All ranks have the same number of chunks.
    """
    heads_kv = max(1, problem.num_heads_kv // ranks)
    if pushes:
        return _of_bytes(problem, problem.heads_q // ranks, heads_kv, ULYSSES_CHUNKS)
    return _dividing(heads_kv, ULYSSES_CHUNKS) if is_beside(problem, nccl) else 1


def chunks_around_rings(problem: Problem, ranks: int, groups: int, pushes: bool) -> int:
    """Number of chunks of a rank's heads that go round rings of so many groups of ranks, one chunk after another.

    Only pushes travel in chunks here. Chunks of a mask per head could have other empty steps than the rank.
    """
    if not pushes or problem.concrete_mask.heads > 1:
        return 1
    heads_kv = max(1, problem.num_heads_kv // ranks)
    return _of_bytes(problem, problem.heads_q // ranks, heads_kv, ULYSSES_CHUNKS, groups)


def gather_chunks(problem: Problem, nccl: bool, pushes: bool) -> int:
    """Number of chunks of heads in ring_all_gather. See `ulysses_chunks`."""
    heads_kv = problem.num_heads_kv
    if pushes:
        return _of_bytes(problem, 0, heads_kv, GATHER_CHUNKS)
    return _dividing(heads_kv, GATHER_CHUNKS) if is_beside(problem, nccl) else 1


def _of_bytes(problem: Problem, heads_q: int, heads_kv: int, most: int, groups: int = 1) -> int:
    """Number of chunks of so many heads of a group's tokens, none of which has fewer than CHUNK_BYTES."""
    row = heads_q * problem.head_dim + heads_kv * sum(problem.dims)
    nbytes = problem.concrete_mask.seqlen_k // groups * row * DTYPE_BYTES[problem.dtype]
    return _dividing(heads_kv, max(1, min(most, nbytes // CHUNK_BYTES)))


def _dividing(heads: int, most: int) -> int:
    return max(count for count in range(1, most + 1) if heads % count == 0)


class Coming(Protocol[Arrived]):
    """Something on its way."""

    def wait(self) -> Arrived:
        """Waits for it."""


class Ahead(Generic[Arrived]):
    """Chunks on their way, each of which travels while the chunk before it is computed.

    A collective begins before the kernel that it runs beside. A push may begin after it, so the host first launches the
    kernel, which the device would else wait for.
    """

    def __init__(self, send: Callable[[int], Coming[Arrived]], chunks: int, pushes: bool) -> None:
        self._send, self._chunks, self._pushes = send, chunks, pushes
        self._coming, self._sent = [send(0)], 1

    @contextmanager
    def next(self) -> Iterator[Arrived]:
        """Waits for the next chunk, whose kernel is launched within the context."""
        if not self._pushes:
            self._begin()
        arrived = self._coming.pop(0).wait()
        try:
            yield arrived
        finally:  # a peer that waits for the next chunk gets it even if the kernel failed here
            if self._pushes:
                self._begin()

    def _begin(self) -> None:
        if self._sent < self._chunks:
            self._coming.append(self._send(self._sent))
            self._sent += 1
