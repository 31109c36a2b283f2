"""Timeline: when each GPU computes and copies in one call of a strategy, from a profiler's trace.

    torchrun --standalone --nproc-per-node 2 longca_cp/benchmarks/timeline.py [--strategies ring_p2p ulysses]
        [--seqlen 65536] [--mask full] [--out results/h200/distributed/timeline.json]

Every strategy runs by each transport. The record has a row for each span of a GPU's time in which a kernel, a copy of
the copy engines, a copy within the GPU or a collective of NCCL runs. Times are in milliseconds from the first span of
the call on any GPU. The ranks share a host, so that their clocks agree. `docs/timeline_chart.py` draws the record.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peer_ranks import Ranks
from peer_subjects import Case, ours
from peers import case_of, draw

import longca
from longca import Transport
from longca.manifests.devices import current_device
from longca_bench.measuring.environment import surroundings

#: Calls before the traced one, and the gap in nanoseconds below which two spans count as one.
_WARM_UP, _GAP = 5, 2000


class Kind(StrEnum):
    """The work of a span."""

    KERNEL = "kernel"
    COPY = "copy"  # between GPUs, by the copy engines
    LOCAL_COPY = "local_copy"  # within a GPU, by its multiprocessors
    COLLECTIVE = "collective"


class Span(NamedTuple):
    """A span of a GPU's time, in nanoseconds of the host's clock."""

    kind: Kind
    start: int
    end: int


def spans_of(events: Iterable[Any]) -> Iterator[Span]:
    """The spans of a profiler's events on the GPU, by kind. Overlapping and touching ones of a kind are joined.

    Args:
        events: Kineto's events: `prof.profiler.kineto_results.events()`.
    """
    found: dict[Kind, list[tuple[int, int]]] = {kind: [] for kind in Kind}
    for event in events:
        on_gpu = event.device_type().name == "CUDA" and not event.is_user_annotation()
        if on_gpu and (kind := _kind_of(event.name())) is not None:
            found[kind].append((event.start_ns(), event.start_ns() + event.duration_ns()))
    for kind, times in found.items():
        last: Span | None = None
        for start, end in sorted(times):
            if last is not None and start <= last.end + _GAP:
                last = last._replace(end=max(last.end, end))
                continue
            if last is not None:
                yield last
            last = Span(kind, start, end)
        if last is not None:
            yield last


def _kind_of(name: str) -> Kind | None:
    """The kind of an event by its name, or None for what is not shown, such as a memory set."""
    if name.startswith("Memset"):
        return None
    if name.startswith("Memcpy"):
        return Kind.LOCAL_COPY if name.startswith("Memcpy DtoD") else Kind.COPY
    return Kind.COLLECTIVE if "nccl" in name.lower() else Kind.KERNEL


def rows_of(everyones: Iterable[Iterable[Span]], **about: str) -> list[dict[str, Any]]:
    """The record's rows of one call.

    Args:
        everyones: The spans of each rank.
        **about: Further fields of each row.
    """
    ranks = [list(spans) for spans in everyones]
    first = min((span.start for spans in ranks for span in spans), default=0)
    return [
        {**about, "rank": rank, "kind": str(span.kind), "start": _ms(span.start - first), "end": _ms(span.end - first)}
        for rank, spans in enumerate(ranks)
        for span in spans
    ]


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 4)


def traced(call: Callable[[], object], ranks: Ranks) -> list[Span]:
    """The spans of a call on this rank's GPU."""
    torch.cuda.synchronize()
    ranks.everyone(None)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        ranks.line_up()
        call()
        torch.cuda.synchronize()
    return list(spans_of(profile.profiler.kineto_results.events()))


def measure(strategy: str, transport: str, case: Case) -> list[dict[str, Any]]:
    """The rows of a strategy's forward and backward."""
    subject, ranks = ours(strategy, case, transport), case.ranks
    for _ in range(_WARM_UP):
        subject.backward(subject.forward())
    kept = subject.forward()
    calls = {"forward": subject.forward, "backward": lambda: subject.backward(kept)}
    rows = []
    for direction, call in calls.items():
        everyones = ranks.everyone(traced(call, ranks))
        rows += rows_of(everyones, strategy=strategy, transport=transport, direction=direction)
    return rows


def main() -> None:
    """Traces, and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=["ring_p2p", "ulysses"])
    parser.add_argument("--transports", nargs="+", default=["copy_engine", "collectives"], choices=list(Transport))
    parser.add_argument("--seqlen", type=int, default=2**16, help="tokens in all")
    parser.add_argument("--mask", default="full", choices=["full", "causal"])
    parser.add_argument("--heads", default="64:8", help="query heads and KV heads")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--kernel", default="fa3")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write the record to")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("a timeline is of GPUs, and torch sees none here")
    asked.heads = tuple(map(int, asked.heads.split(":")))
    ranks = Ranks("cuda")
    case = case_of(asked.mask, asked.seqlen, draw(asked.seqlen, asked, ranks), asked, ranks)
    each = [(strategy, transport) for strategy in asked.strategies for transport in asked.transports]
    rows = [row for strategy, transport in each for row in measure(strategy, transport, case)]
    if ranks.rank == 0:
        about = {"seqlen": asked.seqlen, "mask": asked.mask, "kernel": asked.kernel, "ranks": ranks.size}
        environment = surroundings(longca.registry(), current_device())
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"environment": environment, **about, "rows": rows}
        asked.out.write_text(json.dumps(record, indent=None) + "\n", encoding="utf-8")
    ranks.leave()


if __name__ == "__main__":
    main()
