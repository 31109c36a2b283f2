"""Jobs of the tests of pushed rings and gathers. Each of them compares pushes with collectives on every rank."""

import weakref
from unittest import mock

import torch
from jobs import attend, errors, inputs, mask_of, mesh_of, problem_of, rank_of

import longca
from longca import masks
from longca.manifests import Transport
from longca_builtin.naive import Naive
from longca_cp import exchange, inbox, runs
from longca_cp.transports.shared_memory import SharedMemoryLink


def placed(strategy, sizes, mask, placement, heads, dtype):
    """The layout of a mask."""
    about = {"strategy": strategy, "mesh": mesh_of(sizes), "placement": placement, "kernel": "naive"}
    return longca.layout(mask, heads=heads, head_dim=8, dtype=dtype, **about)


def gathered_in_few_runs(size, kind, factors, placement, most_runs):
    """The largest error of a gather whose rows are packed, because few runs are pushed one by one."""
    mask, sizes, given = mask_of(kind, 101, factors), (("ring", size),), inputs(101, (8, 2), "float64")
    layout = placed("ring_all_gather", sizes, mask, placement, (8, 2), "float64")
    rank = rank_of(sizes, None)
    about = {"strategy": "ring_all_gather", "mesh": mesh_of(sizes), "placement": layout, "kernel": "naive"}
    mask = masks.SliceMask(mask.slices, 101, 101)  # a mask of its own has a plan of its own
    with mock.patch.object(runs, "MOST_RUNS", most_runs):
        results = attend(mask, [layout.shard(x, rank) for x in given], transport="copy_engine", **about)
    return max(errors(results, attend(mask, given), layout, rank))


def layers_in_flight(strategy, sizes, kinds, placement, heads, transport):
    """Out and gradients of several layers, forward through all of them and then backward, as lists of numbers."""
    mesh, found, layers = mesh_of(sizes), [], []
    for at, (kind, factors) in enumerate(kinds):
        mask = mask_of(kind, 101, factors)
        layout = placed(strategy, sizes, mask, placement, heads, "float64")
        *qkv, dout = ((at + 1) * layout.shard(x, rank_of(sizes, None)) for x in inputs(101, heads, "float64"))
        qkv = [x.requires_grad_() for x in qkv]
        about = {"strategy": strategy, "mesh": mesh, "placement": layout, "kernel": "naive", "transport": transport}
        layers.append((longca.attention(*qkv, mask, **about), qkv, dout))
    for out, qkv, dout in reversed(layers):
        found += [out.detach(), *torch.autograd.grad(out, qkv, dout)]
    return [x.ravel().tolist() for x in found]


def in_any_order(strategy, sizes, kind, factors, placement, heads, seeds):
    """Whether results have equal bits in the orders of pushes that seeds draw."""
    mask, mesh = mask_of(kind, 60, factors), mesh_of(sizes)
    layout = placed(strategy, sizes, mask, placement, heads, "float32")
    q, k, v, dout = (layout.shard(x, rank_of(sizes, None)) for x in inputs(60, heads, "float32"))
    found = []
    for seed in seeds:
        made = on_links(strategy, mesh, lambda group, seed=seed: SharedMemoryLink(group, deadline=60, seed=seed))
        plan = made.plan(problem_of(mask, q, k), layout, Naive())
        out, lse = made.forward(q, k, v, plan)
        found.append([out, lse, *made.backward(dout, q, k, v, out, lse, plan)])
    return all(torch.equal(x, y) for each in found[1:] for x, y in zip(each, found[0], strict=True))


def on_links(strategy, mesh, make):
    """A strategy on links of its own."""

    def links_of(groups, device, transport):
        return {axis: make(group) if group.size() > 1 else None for axis, group in groups.items()}

    with mock.patch.object(exchange, "links_of", links_of):
        return longca.registry().load_strategy(strategy)(mesh, transport=Transport.COPY_ENGINE)


class Counting(SharedMemoryLink):
    """A link that counts the bytes it pushes to others."""

    pushed = 0

    def _push(self, index, into, source):
        self.pushed += source.nbytes * (index != self.index)
        super()._push(index, into, source)


def pushed_bytes(strategy, sizes, kind, seqlen, factors, placement, heads):
    """Bytes that this rank pushes to others, forward and then backward."""
    mask, links = mask_of(kind, seqlen, factors), []
    layout = placed(strategy, sizes, mask, placement, heads, "float32")
    q, k, v, dout = (layout.shard(x, rank_of(sizes, None)) for x in inputs(seqlen, heads, "float32"))
    made = on_links(strategy, mesh_of(sizes), lambda group: links.append(Counting(group)) or links[-1])
    plan, found = made.plan(problem_of(mask, q, k), layout, Naive()), []
    out, lse = made.forward(q, k, v, plan)
    found.append(sum(link.pushed for link in links))
    made.backward(dout, q, k, v, out, lse, plan)
    return [found[0], sum(link.pushed for link in links) - found[0]]


def inboxes(size, asked):
    """The inboxes that plans get one after another, as indices of different ones. Each is asked by (length, uses)."""
    axis = exchange.axes_of(mesh_of((("ring", size),)), ("ring",), Transport.COPY_ENGINE)[1][0]
    boxes = [inbox.Request(axis.link, "rows of a test", length, torch.float32, uses).inbox for length, uses in asked]
    return [None if box is None else boxes.index(box) for box in boxes]


def living_inbox(size):
    """Whether ranks take a new inbox together, where an old one lives on the first rank alone."""
    axis = exchange.axes_of(mesh_of((("ring", size),)), ("ring",), Transport.COPY_ENGINE)[1][0]
    first = inbox.Request(axis.link, "rows of a test", 8, torch.float32, 1).inbox
    known = weakref.ref(first)
    if axis.index:
        del first
    second = inbox.Request(axis.link, "rows of a test", 8, torch.float32, 1).inbox
    return known() is not second


def order_of_pushes(strategy, sizes, kind, heads):
    """What this rank's host begins in a forward and in a backward, in order: a `kernel`, or a push to a peer.

    An `early` push does not wait for kernels that were begun before it, and a `late` one does.
    """
    mask, begun = mask_of(kind, 96, ()), []

    class Noted(SharedMemoryLink):
        def send(self, *arguments, early=False):
            begun.append("early" if early else "late")
            return super().send(*arguments, early=early)

    class Computes(Naive):
        def forward(self, *arguments, **options):
            begun.append("kernel")
            return super().forward(*arguments, **options)

        def backward(self, *arguments, **options):
            begun.append("kernel")
            return super().backward(*arguments, **options)

    layout = placed(strategy, sizes, mask, "contiguous", heads, "float32")
    q, k, v, dout = (layout.shard(x, rank_of(sizes, None)) for x in inputs(96, heads, "float32"))
    made = on_links(strategy, mesh_of(sizes), Noted)
    plan = made.plan(problem_of(mask, q, k), layout, Computes())
    begun.clear()
    out, lse = made.forward(q, k, v, plan)
    forward = list(begun)
    begun.clear()
    made.backward(dout, q, k, v, out, lse, plan)
    return forward, begun
