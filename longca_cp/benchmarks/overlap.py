"""Overlap: the gain of transfers that run while a kernel computes, by strategy and mask.

    torchrun --standalone --nproc-per-node 4 longca_cp/benchmarks/overlap.py [--seqlens 32768 131072]
        [--masks full causal] [--chunks 1 2 4] [--transport collectives] [--out results/h200/distributed/overlap.json]

ulysses and ring_all_gather run with every number of chunks that divides a rank's KV heads. ring_p2p, usp and loongtrain
run with the next step's keys beside a step's forward, and before it. Rings that push do so beside every step, and are
timed once. All take turns (`peer_turns`) with the kernel on
one rank's share of the heads, on one GPU alone and on all abreast. The record is the evidence for `longca_cp.overlap`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from peer_ranks import Ranks
from peer_subjects import Case, Timed, abreast, alone
from peer_turns import DIRECTIONS, Turns, take_turns
from peers import case_of, draw
from torch import Tensor

import longca
from longca import Transport
from longca.manifests.devices import current_device
from longca.parallel.meshes import rank_in
from longca_advice.placing import place
from longca_bench.measuring.environment import surroundings
from longca_bench.suites.meshes import equal_mesh


@dataclass(frozen=True)
class Way:
    """A strategy and its variation.

    Attributes:
        strategy: Its name.
        chunks: Chunks of heads. None for strategies without chunks.
        beside: Whether transfers run beside a step. None for strategies with chunks.
    """

    strategy: str
    chunks: int | None = None
    beside: bool | None = None

    @property
    def name(self) -> str:
        """Its name."""
        if self.chunks is not None:
            return f"{self.strategy} in {self.chunks}"
        return f"{self.strategy} {'beside' if self.beside else 'before'}"

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Makes strategies use this variation, and not the choice of `longca_cp.overlap`."""
        with ExitStack() as stack:
            if self.chunks is not None:
                for function in ("ulysses.ulysses_chunks", "ring_all_gather.gather_chunks"):
                    stack.enter_context(patch(f"longca_cp.{function}", return_value=self.chunks))
            else:
                for module in ("ring_p2p", "loongtrain"):
                    stack.enter_context(patch(f"longca_cp.{module}.is_beside", return_value=self.beside))
            yield


class Varied:
    """A strategy with a variation.

    Args:
        way: The way.
        case: The case.
        transport: The way to move tensors.
    """

    def __init__(self, way: Way, case: Case, transport: Transport) -> None:
        self.way, self.name, self.around = way, way.name, way.taken
        registry, ranks, x = longca.registry(), case.ranks, case.inputs
        axes = registry.strategy(way.strategy).axes
        sizes = tuple(zip(axes, equal_mesh(ranks.size, len(axes)), strict=True))
        mesh = ranks.mesh(sizes)
        _, layout = place(registry, way.strategy, case.kernel, case.problem, dict(sizes))
        self._made = registry.load_strategy(way.strategy)(mesh, transport=transport)
        with way.taken():
            self._plan = self._made.plan(case.problem, layout, registry.load(case.kernel))
        rank = rank_in(mesh, axes)
        self._q, self._k, self._v, self._dout = (layout.shard(each, rank) for each in (x.q, x.k, x.v, x.dout))

    def forward(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """out, lse, and the kept tensors."""
        kept: list[Tensor] = []
        out, lse = self._made.forward(self._q, self._k, self._v, self._plan, kept=kept)
        return out, lse, kept

    def backward(self, result: tuple[Tensor, Tensor, list[Tensor]]) -> tuple[Tensor, ...]:
        """dq, dk and dv."""
        out, lse, kept = result
        saved = self._q, self._k, self._v, out, lse
        grads: tuple[Tensor, ...] = self._made.backward(self._dout, *saved, self._plan, kept=kept or None)
        return grads


def ways(case: Case, chunks: list[int], transport: Transport) -> list[Way]:
    """All that a case can go."""
    heads = case.problem.num_heads_kv
    of_rank = {"ulysses": max(1, heads // case.ranks.size), "ring_all_gather": heads}
    found = [Way(name, count) for name, each in of_rank.items() for count in chunks if each % count == 0]
    orders = (True,) if transport is Transport.COPY_ENGINE else (True, False)
    return found + [Way(name, beside=beside) for name in ("ring_p2p", "usp", "loongtrain") for beside in orders]


def measure(case: Case, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """All ways on one case, and the kernel without a strategy."""
    limits = [each for each in (alone(case), abreast(case)) if each is not None]
    assert limits, "heads divide among the ranks"
    varied = [Varied(way, case, asked.transport) for way in ways(case, asked.chunks, asked.transport)]
    everyone: list[Timed] = [*limits, *varied]
    turns = [Turns(each, case.ranks) for each in everyone]
    take_turns(turns, asked.seconds)
    fields: list[dict[str, Any]] = [{} for _ in limits]
    fields += [{"strategy": e.way.strategy, "chunks": e.way.chunks, "beside": e.way.beside} for e in varied]
    rows = []
    for direction in DIRECTIONS:
        about = {"seqlen": case.problem.concrete_mask.seqlen_q, "mask": case.pattern, "direction": direction}
        about["transport"] = str(asked.transport)
        for way, each in zip(fields, turns, strict=True):
            assert each.failure is None, each.failure
            took, reached = each.median(direction), turns[0].median(direction)
            measured = {"milliseconds": took * 1e3, "of_alone": reached / took}
            rows.append({**about, "name": each.subject.name, **way, **measured})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Prints the measurements."""
    for row in rows:
        about = f"{row['mask']:8}{row['seqlen']:>8} {row['direction']:10}{row['name']:24}"
        print(f"{about}{row['milliseconds']:>9.2f} ms{row['of_alone']:>7.3f}")


def main() -> None:
    """Measures, prints a table, and writes the record where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlens", nargs="+", type=int, default=[2**15, 2**17], help="tokens in all")
    parser.add_argument("--masks", nargs="+", default=["full", "causal"], choices=["full", "causal"])
    parser.add_argument("--chunks", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--transport", default=Transport.COLLECTIVES, type=Transport, choices=list(Transport))
    parser.add_argument("--heads", default="64:8", help="query heads and KV heads")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=0.45, help="of samples for each direction, about")
    parser.add_argument("--kernel", default="fa3" if torch.cuda.is_available() else "naive")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file to write the record to, after each length and mask")
    asked = parser.parse_args()
    asked.heads = tuple(map(int, asked.heads.split(":")))
    ranks, rows = Ranks("cuda" if torch.cuda.is_available() else "cpu"), []
    for seqlen in asked.seqlens:
        inputs = draw(seqlen, asked, ranks)
        for pattern in asked.masks:
            rows += measure(case_of(pattern, seqlen, inputs, asked, ranks), asked)
            if asked.out and ranks.rank == 0:
                asked.out.parent.mkdir(parents=True, exist_ok=True)
                environment = surroundings(longca.registry(), current_device())
                record = {"environment": environment, "ranks": ranks.size, "rows": rows}
                asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if ranks.rank == 0:
        show(rows)
    ranks.leave()


if __name__ == "__main__":
    main()
