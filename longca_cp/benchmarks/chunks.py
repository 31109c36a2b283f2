"""Chunks of heads: whether it pays that one travels while another is computed, by strategy and mask.

    torchrun --standalone --nproc-per-node 4 longca_cp/benchmarks/chunks.py [--seqlens 32768 131072]
        [--masks full causal] [--counts 1 2 4] [--out results/h200/distributed/chunks.json]

ulysses and ring_all_gather, each with every count that divides a rank's KV heads, take turns with the kernel alone on
one rank's share of the heads (`peer_turns`). The record has what `longca_cp.chunks` rests on.
"""

from __future__ import annotations

import argparse
import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from peer_ranks import Ranks
from peer_subjects import Case, alone
from peer_turns import DIRECTIONS, ROUNDS, Turns
from peers import case_of, draw
from torch import Tensor

import longca
from longca.bench.environment import surroundings
from longca.manifests.devices import current_device

AXES = {"ulysses": "ulysses", "ring_all_gather": "ring"}


class Chunked:
    """A strategy whose heads go in so many chunks.

    Args:
        strategy: Its name.
        count: Chunks.
        case: What it computes.
    """

    def __init__(self, strategy: str, count: int, case: Case) -> None:
        self.name, registry, ranks = f"{strategy} in {count}", longca.registry(), case.ranks
        sizes = {AXES[strategy]: ranks.size}
        self.placement, layout = registry.place(strategy, case.kernel, case.problem, sizes)
        self._made = registry.load_strategy(strategy)(ranks.mesh(tuple(sizes.items())))
        with patch(f"longca_cp.{strategy}.chunk_count", lambda *_: count):
            self._plan = self._made.plan(case.problem, layout, registry.load(case.kernel))
        x = case.inputs
        self._q, self._k, self._v, self._dout = (layout.shard(each, ranks.rank) for each in (x.q, x.k, x.v, x.dout))

    def around(self) -> AbstractContextManager[Any]:
        """Nothing."""
        return nullcontext()

    def forward(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """out, lse, and what is kept."""
        kept: list[Tensor] = []
        out, lse = self._made.forward(self._q, self._k, self._v, self._plan, kept=kept)
        return out, lse, kept

    def backward(self, result: tuple[Tensor, Tensor, list[Tensor]]) -> tuple[Tensor, ...]:
        """dq, dk and dv."""
        out, lse, kept = result
        grads: tuple[Tensor, ...] = self._made.backward(
            self._dout, self._q, self._k, self._v, out, lse, self._plan, kept=kept or None
        )
        return grads


def measure(case: Case, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """All counts on one case, and the kernel alone."""
    lone = alone(case)
    assert lone is not None, "heads divide among the ranks"
    best, kv = Turns(lone, case.ranks), case.problem.num_heads_kv
    of_rank = {"ulysses": max(1, kv // case.ranks.size), "ring_all_gather": kv}
    ways = [(name, count) for name, heads in of_rank.items() for count in asked.counts if heads % count == 0]
    turns = {way: Turns(Chunked(*way, case), case.ranks) for way in ways}
    for _ in range(ROUNDS):
        for each in (best, *turns.values()):
            each.take(asked.seconds / ROUNDS)
            assert each.failure is None, each.failure
    rows = []
    for direction in DIRECTIONS:
        reached = best.median(direction)
        about = {"seqlen": case.problem.concrete_mask.seqlen_q, "mask": case.pattern, "direction": direction}
        rows.append({**about, "strategy": None, "chunks": None, "milliseconds": reached * 1e3, "of_alone": 1.0})
        for (name, count), each in turns.items():
            took = each.median(direction)
            measured = {"milliseconds": took * 1e3, "of_alone": reached / took}
            rows.append({**about, "strategy": name, "chunks": count, **measured})
    return rows


def main() -> None:
    """Measures, prints a table, and writes the record where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlens", nargs="+", type=int, default=[2**15, 2**17], help="tokens in all")
    parser.add_argument("--masks", nargs="+", default=["full", "causal"], choices=["full", "causal"])
    parser.add_argument("--counts", nargs="+", type=int, default=[1, 2, 4], help="chunks")
    parser.add_argument("--heads", default="64:8", help="query heads and KV heads")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=0.45, help="of samples for each direction, about")
    parser.add_argument("--kernel", default="fa3" if torch.cuda.is_available() else "naive")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file to write the record to")
    asked = parser.parse_args()
    asked.heads = tuple(map(int, asked.heads.split(":")))
    ranks, rows = Ranks("cuda" if torch.cuda.is_available() else "cpu"), []
    for seqlen in asked.seqlens:
        inputs = draw(seqlen, asked, ranks)
        for pattern in asked.masks:
            rows += measure(case_of(pattern, seqlen, inputs, asked, ranks), asked)
    if ranks.rank == 0:
        for row in rows:
            name = "alone" if row["strategy"] is None else f"{row['strategy']} in {row['chunks']}"
            about = f"{row['mask']:8}{row['seqlen']:>8} {row['direction']:10}{name:24}"
            print(f"{about}{row['milliseconds']:>9.2f} ms{row['of_alone']:>7.3f}")
        if asked.out:
            asked.out.parent.mkdir(parents=True, exist_ok=True)
            record = {"environment": surroundings(longca.registry(), current_device()), "rows": rows}
            asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    ranks.leave()


if __name__ == "__main__":
    main()
