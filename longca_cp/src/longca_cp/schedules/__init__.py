"""The schedules of the five strategies: the computation and the moves of each call, in the order of the runtime.

Each function mirrors the module of its strategy. A test compares it with the collectives that the strategies send.
Bytes are the bytes of the rank that has most. A backward assumes that its forward kept every tensor it could.

The copy engine moves the rows that a kernel reads straight to their places, so nothing is copied before, and a full
mask's moves run beside the step too. A gather counts the needed rows, and every step of a ring counts. The rings of
`loongtrain` count as those of collectives do. `auto` counts as on GPUs of one host.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from longca.manifests import Layout, Problem, Transport
from longca.manifests.schedule import Move, Phase, Schedule
from longca_cp.overlap import axes_with_links, chunks_around_rings, gather_chunks, ulysses_chunks
from longca_cp.schedules.gathered import Gathered
from longca_cp.schedules.rings import Ring, double_ring_backward, ring_backward, rings
from longca_cp.schedules.sizes import ExchangeSizes, Sizes

__all__ = ["loongtrain", "ring_all_gather", "ring_p2p", "ulysses", "usp"]


def ulysses(problem: Problem, layout: Layout, nccl: bool, transport: Transport = Transport.AUTO) -> Schedule:
    """Heads exchanged, a chunk computed while the next one comes and the last one leaves, and exchanged back."""
    exchange = ExchangeSizes.of("ulysses", Sizes.of(problem), layout)
    links = axes_with_links(transport, dict(layout.axis_sizes), nccl)
    pushes = "ulysses" in links
    chunks = ulysses_chunks(problem, exchange.ranks, nccl, pushes)
    return _moved(_around(problem, exchange, [(Phase(0, 1 / chunks),)] * chunks, pushes), links)


def ring_p2p(problem: Problem, layout: Layout, nccl: bool, transport: Transport = Transport.AUTO) -> Schedule:
    """Keys and values go round a ring, each hop beside a step. In the backward their gradients follow a step behind."""
    links = axes_with_links(transport, dict(layout.axis_sizes), nccl)
    made = Ring.of(problem, layout, nccl, Sizes.of(problem), "ring", 1, "ring" in links)
    return _moved(_ring_of(problem, made), links)


def usp(problem: Problem, layout: Layout, nccl: bool, transport: Transport = Transport.AUTO) -> Schedule:
    """An exchange of heads around the phases of a ring of groups, which each chunk of heads goes round."""
    exchange = ExchangeSizes.of("ulysses", Sizes.of(problem), layout)
    links = axes_with_links(transport, dict(layout.axis_sizes), nccl)
    pushes = "ulysses" in links
    chunks = chunks_around_rings(problem, exchange.ranks, len(exchange.tokens), pushes)
    sizes = exchange.mine.in_chunks(chunks)
    made = Ring.of(problem, layout, nccl, sizes, "ring", exchange.ranks, "ring" in links)
    return _moved(_around(problem, exchange, _in_turns(_ring_of(problem, made), chunks), pushes), links)


def loongtrain(problem: Problem, layout: Layout, nccl: bool, transport: Transport = Transport.AUTO) -> Schedule:
    """An exchange of heads around the phases of a double ring, which each chunk of heads goes round."""
    exchange = ExchangeSizes.of("heads", Sizes.of(problem), layout)
    links = axes_with_links(transport, dict(layout.axis_sizes), nccl)
    pushes = "heads" in links
    chunks = chunks_around_rings(problem, exchange.ranks, len(exchange.tokens), pushes)
    made = Ring.of(problem, layout, nccl, exchange.mine.in_chunks(chunks), "inner", exchange.ranks)
    outer = dict(layout.axis_sizes)["outer"]
    phases = rings(made, outer) if problem.direction == "forward" else double_ring_backward(made, outer)
    return _moved(_around(problem, exchange, _in_turns(phases, chunks), pushes), links)


def ring_all_gather(problem: Problem, layout: Layout, nccl: bool, transport: Transport = Transport.AUTO) -> Schedule:
    """Gathers keys and values, one chunk of heads ahead of the computation. Gradients go back a chunk behind."""
    links = axes_with_links(transport, dict(layout.axis_sizes), nccl)
    pushes = "ring" in links
    sizes, gathered = Sizes.of(problem), _gathered(layout, pushes)
    chunks = gather_chunks(problem, nccl, pushes)
    row, ranks = sizes.kv // chunks, layout.world_size
    held, needed = (int(rows.max()) * row for rows in (gathered.held, gathered.needed))
    if gathered.everything:
        bring = Move("all_gather", "ring", ranks * held, (ranks - 1) * held, carries="k, v")
        pack = 2 * held + (2 * held if len(set(gathered.held.tolist())) > 1 else 0)
    else:
        given = int(gathered.given.max()) * row
        bring = Move("all_to_all", "ring", given, gathered.sent * row, carries="k, v")
        pack = 0 if pushes else 2 * held + 2 * given
    unpack = 2 * needed if gathered.reorders else 0
    phases = [Phase(moves=(bring,), touched=pack)]
    back = _sending_back(sizes, gathered, row) if problem.direction == "backward" else None
    for chunk in range(chunks):
        coming = (bring,) if chunk + 1 < chunks else ()
        touched = unpack + (pack if coming else 0)
        if back is not None and chunk > 0:
            coming, touched = (*coming, *back.moves), touched + back.touched + back.merged
        phases.append(Phase(0, 1 / chunks, coming, touched=touched))
    if back is not None:
        phases += [Phase(moves=back.moves, touched=back.touched), Phase(touched=back.merged)]
    return _moved(tuple(phases), links)


def _moved(schedule: Schedule, links: frozenset[str]) -> Schedule:
    """A schedule whose moves along axes with links are pushes."""

    def moved(move: Move) -> Move:
        return replace(move, kind="push") if move.axis in links else move

    return tuple(replace(phase, moves=tuple(map(moved, phase.moves))) for phase in schedule)


#: The latest are kept, for the other direction.
_gathered = lru_cache(maxsize=4)(Gathered)


def _ring_of(problem: Problem, made: Ring) -> Schedule:
    """A ring in the problem's direction."""
    return rings(made) if problem.direction == "forward" else ring_backward(made)


def _in_turns(rings: Schedule, chunks: int) -> list[Schedule]:
    """The phases of rings, for each chunk of heads."""
    return [tuple(replace(phase, share=phase.share / chunks) for phase in rings)] * chunks


def _sending_back(sizes: Sizes, gathered: Gathered, row: int) -> Phase:
    """The return of a chunk's gradients. Packing counts as `touched`, and unpacking as `merged`."""
    held, needed = (int(rows.max()) * row for rows in (gathered.held, gathered.needed))
    ranks, wide = gathered.layout.world_size, sizes.wide
    reordered = (2 * needed if gathered.reorders else 0) + (ranks * held if gathered.everything else 0)
    if gathered.everything:
        move = Move("reduce_scatter", "ring", wide * ranks * held, wide * (ranks - 1) * held, carries="dk, dv")
        return Phase(moves=(move,), touched=reordered + (1 + wide) * ranks * held, merged=(wide + 1) * held)
    given = int(gathered.given.max()) * row
    move = Move("all_to_all", "ring", needed, gathered.sent * row, carries="dk, dv")
    # Rows are cast, and added to the sum in place.
    return Phase(moves=(move,), touched=reordered, merged=(1 + 4 * wide) * given + (2 * wide + 1) * held)


def _around(problem: Problem, exchange: ExchangeSizes, computes: list[Schedule], pushes: bool) -> Schedule:
    """An exchange of heads around the phases of each chunk of heads, as `longca_cp.ulysses.ByHeads` makes it."""
    chunks = len(computes)
    mine, forward = exchange.mine, problem.direction == "forward"
    come, go = (mine.q + mine.kv, mine.out) if forward else (mine.out, mine.q + mine.kv)
    there, back = ("q, k, v", "out") if forward else ("dout", "dq, dk, dv")
    coming = exchange.to_heads(come // chunks, there)
    pack = 0 if pushes else exchange.packed(come // chunks, mine.copies and forward)
    leaving = (exchange.to_tokens(go // chunks, back), *([exchange.lse(mine.heads_q // chunks)] if forward else []))
    # The gradients of rings are put beside one another before they are sent.
    joined = 0 if forward or len(computes[0]) == 1 else exchange.unpacked(go // chunks)
    phases = [Phase(moves=(coming,), touched=pack)]
    for chunk, (first, *others) in enumerate(computes):
        more = chunk + 1 < chunks
        moves = (*([coming] if more else []), *(leaving if chunk else ()), *first.moves)
        touched = first.touched + (pack if more else 0) + (joined if chunk else 0)
        phases += [replace(first, moves=moves, touched=touched), *others]
    phases.append(Phase(moves=leaving, touched=joined))
    return (*phases, Phase(touched=chunks * exchange.unpacked(go // chunks)))
