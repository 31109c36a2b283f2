"""One rank of three, by `test_collectives`: collectives are seen, counted and repeated; heads go where they should."""

import gc
import sys

import pytest
import torch
import torch.distributed as dist

from longca.errors import LongCAError
from longca.manifests import Device, Layout, Problem
from longca.masks import build
from longca_bench.measuring.commands import ALL
from longca_bench.measuring.messages import Place
from longca_bench.measuring.rank_worker import added_up
from longca_bench.measuring.shares import by_heads, held_tokens, shares_of_all
from longca_bench.measuring.strategy_parts import measure_communication
from longca_bench.measuring.timing import time_calls
from longca_bench.measuring.traffic import Recorder, repeat, sent_by_kind
from longca_bench.ranks.world import JobWorld

RANKS = 3


def communicate(rank):
    """Of 12 and 24 bytes a row: a ring of two steps, and one of each collective."""
    x, y = torch.full((4, 3), float(rank)), torch.empty(4, 3)
    for _ in range(2):
        moves = [dist.P2POp(dist.isend, x, (rank + 1) % RANKS), dist.P2POp(dist.irecv, y, (rank - 1) % RANKS)]
        for work in dist.batch_isend_irecv(moves):
            work.wait()
    sizes = [1, 0, 3]
    got = torch.empty(sizes[rank] * RANKS, 3)
    dist.all_to_all_single(got, x, [sizes[rank]] * RANKS, sizes)
    dist.all_reduce(x)
    dist.broadcast(x, 1)
    whole = torch.empty(12, 3)
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    gather(whole, x)
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    scatter(y, whole)
    return got


def check_collectives(world):
    with Recorder() as recorder:
        got = communicate(world.rank)
    assert got.unique().tolist() == ([] if world.rank == 1 else [0.0, 1.0, 2.0])
    seen = recorder.collectives
    kinds = ["p2p", "p2p", "all_to_all", "all_reduce", "broadcast", "all_gather", "reduce_scatter"]
    assert [c.kind for c in seen] == kinds
    assert [c.size for c in seen] == [48, 48, 48, 48, 48, 144, 144]
    sent = {0: 36, 1: 48, 2: 12}[world.rank]  # of rows for 1, 0 and 3, but not its own
    assert sent_by_kind(seen) == {
        "p2p": 96, "all_to_all": sent, "all_reduce": 64, "broadcast": 48, "all_gather": 96, "reduce_scatter": 96,
    }  # fmt: skip
    before = got.clone()
    repeat(seen)
    assert torch.equal(got, before), "what is begun again goes to memory of its own"
    by_kind = {kind: [c for c in seen if c.kind == kind] for kind in kinds} | {ALL: seen}
    traffic = {kind: added_up(some) for kind, some in by_kind.items() if kind != ALL}

    def timed(kind):
        return time_calls(lambda: repeat(by_kind[kind]), world, 0.001)

    measured = measure_communication(traffic, world, timed)
    assert set(measured) == {*kinds, ALL}
    assert measured["p2p"]["calls"] == 2
    assert (measured["all_to_all"]["bytes"], measured[ALL]["bytes"]) == (48, 528)
    found = measured["all_gather"]
    assert abs(found["busbw"] / found["algbw"] - 2 / 3) < 1e-9
    assert measure_communication({}, world, timed) == {}
    # One that is not counted does not pass in silence.
    with Recorder(), pytest.raises(LongCAError, match="gather_"):
        dist.gather(torch.zeros(1), [torch.zeros(1) for _ in range(RANKS)] if world.rank == 0 else None)


def check_heads(world):
    """Uneven shards, two KV heads for three ranks, and ranks in another order than the layout's."""
    problem = Problem(mask=build("full", 10), heads_q=4, heads_kv=2, head_dim=3, device=Device("cpu"), dtype="float32")
    layout = Layout(((),) * 3, (((0, 2), (9, 10)), ((2, 3),), ((3, 9),)))
    places, dealt = (2, 0, 1), shares_of_all(problem, RANKS)
    held, drawn = held_tokens(layout, places), torch.tensor([1, 2, 6, 9])
    some = [tokens[torch.isin(tokens, drawn)] for tokens in held]
    assert [share.heads_kv for share in dealt] == [(), (0,), (1,)]
    share, place = dealt[world.rank], places[world.rank]
    for name, heads in (("out", 4), ("dk", 2)):
        whole = torch.arange(10.0 * heads * 3).view(10, heads, 3)
        back = by_heads(name, layout.shard(whole, place), held, dealt, world)
        assert torch.equal(back, share.of(name, whole))
        back = by_heads(name, whole[some[world.rank]], some, dealt, world)
        assert torch.equal(back, share.of(name, whole[drawn])), "the rows of some tokens"
    lse = torch.arange(40.0).view(4, 10)
    back = by_heads("lse", layout.shard(lse.T, place).T.contiguous(), held, dealt, world)
    assert torch.equal(back, share.of("lse", lse))


def check_rounds(world):
    calls = []
    rounds = time_calls(lambda: calls.append(0), world, 0.001)
    assert len(rounds.ranks) == RANKS
    assert world.everyone(len(calls)) == [len(calls)] * RANKS, "all ranks stop after the same round"
    assert rounds.samples == tuple(map(max, zip(*rounds.ranks, strict=True)))


class Judges(JobWorld):
    """A world that notes its exchanges."""

    exchanges = 0

    def all_to_all(self, sent, sizes_out, sizes_in):
        self.exchanges += 1
        return super().all_to_all(sent, sizes_out, sizes_in)


def check_first_exchange(world):
    for _ in range(2):
        world.meet()
    assert world.exchanges == 1


def main(rank, port):
    world = Judges(torch.device("cpu"), Place(0, rank, RANKS, rank, "localhost", port))
    for check in (
        check_first_exchange,
        check_collectives,
        check_heads,
        check_rounds,
    ):
        check(world)
    dist.destroy_process_group()
    # A world is a cycle, and its group's threads must have ended before the interpreter does.
    del world
    gc.collect()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
