"""Jobs of the tests of links. Every rank of a world runs them."""

import gc
import mmap
import random
import resource
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from jobs import attend, errors, inputs, mask_of, mesh_of, problem_of, rank_of, said

import longca
from longca.manifests import Transport
from longca.parallel.pushes import window_bytes
from longca_builtin.naive import Naive
from longca_cp import exchange, pushed_heads
from longca_cp.exchange import axes_of
from longca_cp.overlap import takes_link
from longca_cp.transports import links
from longca_cp.transports.arena import Arena
from longca_cp.transports.link import MOST_SLOTS
from longca_cp.transports.links import links_of
from longca_cp.transports.shared_memory import SharedMemoryLink


def link_between(size):
    """The link of the first ranks of a world, which is cached while it lives."""
    return axes_of(mesh_of((("ulysses", size),)), ("ulysses",), Transport.COPY_ENGINE)[1][0].link


def pushes(size, seed):
    """Whether windows have the pushed rows in every one of many turns."""
    link = SharedMemoryLink(dist.group.WORLD, deadline=60, seed=seed)
    window, slots = link.window((size, 7, 3), torch.float32), link.slots(2)
    wanted, right = torch.arange(size)[:, None, None] * 1000.0, True
    for turn in range(25):
        for peer in range(size):
            link.post(peer, slots[1])
        for peer in random.Random(link.index).sample(range(size), size):
            link.expect(peer, slots[1])
            places = [window.of(peer)[link.index, start : start + 2] for start in range(0, 7, 2)]
            rows = [torch.full_like(into, link.index * 1000.0 + turn) for into in places]
            link.send(peer, zip(places, rows, strict=True), slots[0])
        for peer in range(size):
            link.expect(peer, slots[0])
        right = right and torch.equal(window.mine, (wanted + turn).expand_as(window.mine))
        link.joined()
    return right


def late_posts(size):
    """The error for a peer that posts nothing, the seconds until it came, and the error of the next call."""
    link = SharedMemoryLink(dist.group.WORLD, deadline=0.5)
    slots, began = link.slots(1), time.monotonic()
    if link.index == 0:
        return None
    first = said(lambda: link.expect(0, slots[0], "the keys of a test"))
    return first, time.monotonic() - began, said(lambda: link.post(0, slots[0]))


def failed_pushes(size):
    """The error of a call after a push that failed in the thread."""
    link = SharedMemoryLink(dist.group.WORLD, deadline=60)
    window = link.window((2,), torch.float32)
    link.send(link.index, [(window.mine, torch.zeros(3))], link.slots(1)[0])
    return said(link.joined)


def slots_of_many_plans(size):
    """The first slots that plans get while earlier ones live and after they are gone, and the refusal of too many."""
    link = SharedMemoryLink(dist.group.WORLD, deadline=60)
    first, second = link.slots(3), link.slots(2)
    found = [first[0], second[0]]
    link.post(link.index, second[1])  # nobody awaits it
    if link.index:
        del first
    found.append(link.slots(3)[0])  # the first slots still live on rank 0
    first = None
    found.append(link.slots(3)[0])
    del second
    again = link.slots(MOST_SLOTS)
    link.post(link.index, again[4])
    link.expect(link.index, again[4])
    return found, again[0], again.count, said(lambda: link.slots(1))


def links_of_meshes(size):
    """Which axes have links, by the transport, whether strategies share them, and the results of two halves."""
    mesh = mesh_of((("outer", 1), ("inner", size // 2), ("heads", 2)))
    names = ("outer", "inner", "heads")
    by_transport = {each: axes_of(mesh, names, each)[1] for each in Transport}
    forced = by_transport[Transport.COPY_ENGINE]
    again = axes_of(mesh, names, Transport.COPY_ENGINE)[1]
    half = forced[2].link
    window = half.window((2,), torch.int64)
    slot = half.slots(1)[0]
    for peer in range(2):
        half.send(peer, [(window.of(peer)[half.index :][:1], torch.tensor([dist.get_rank()]))], slot)
    for peer in range(2):
        half.expect(peer, slot)
    has_link = {str(each): [axis.link is not None for axis in axes] for each, axes in by_transport.items()}
    shared = all(x.link is y.link for x, y in zip(forced, again, strict=True))
    return has_link, shared, window.mine.tolist()


@contextmanager
def lacking(lacks):
    """Machines on which the groups of some axes lack something, and the words that are logged of it.

    Args:
        lacks: From the number of an axis in the order of the mesh to a reason and whether it is several hosts. Groups
            of other axes have links.
    """
    by_group, lack_of = {}, links.lack_of

    def links_of(groups, device, transport):
        by_group.update({group: lacks.get(at) for at, group in enumerate(groups.values())})
        return asked(groups, device, transport)

    def found(group, device):
        return links.Lack(*by_group[group]) if by_group[group] else lack_of(group, torch.device("cpu"))

    asked, said_of, make = links.links_of, [], links._make
    links._say_collectives.cache_clear()
    with (
        mock.patch.object(exchange, "links_of", links_of),
        mock.patch.object(links, "lack_of", found),
        mock.patch.object(links, "_make", lambda group, device: make(group, torch.device("cpu"))),
        mock.patch.object(links, "_log") as log,
        mock.patch.object(links, "_LINKS", {}),
    ):
        yield said_of
        said_of += [call.args[0] % call.args[1:] for call in log.info.call_args_list]


def transports_of_axes(size, sizes, lacks):
    """The axes' transports by `auto` as between GPUs and by `copy_engine`, twice each, or the refusals, and the log."""
    mesh, names, found = mesh_of(sizes), [name for name, _ in sizes], {}
    for transport in (Transport.AUTO, Transport.COPY_ENGINE):
        taken = []

        def axes(transport=transport, taken=taken):
            # GPUs of an axis get a link by `auto`, and these are CPUs.
            with mock.patch.object(links, "takes_link", lambda asked, ranks, on_gpus: takes_link(asked, ranks, True)):
                taken.append([str(axis.transport) for axis in axes_of(mesh, names, transport)[1]])

        with lacking(lacks) as log:
            refusals = [said(axes) for _ in range(2)]
        found[str(transport)] = taken, refusals, log
    return found


def results_where_an_axis_lacks_a_link(size, strategy, sizes, lacks, kind, placement):
    """The transports of the axes, and the largest error of results by them."""
    mask, mesh, given = mask_of(kind, 101, ()), mesh_of(sizes), inputs(101, (8, 2), "float64")
    about = {"strategy": strategy, "mesh": mesh, "kernel": "naive", "placement": placement}
    layout = longca.layout(mask, heads=(8, 2), head_dim=8, dtype="float64", **about)
    rank = rank_of(sizes, None)
    q, k, v, dout = (layout.shard(x, rank) for x in given)
    with lacking(lacks):
        made = longca.registry().load_strategy(strategy)(mesh, transport=Transport.COPY_ENGINE)
    plan, worst = made.plan(problem_of(mask, q, k), layout, Naive()), 0.0
    wanted = attend(mask, given)
    for _ in range(2):
        kept = []
        out, lse = made.forward(q, k, v, plan, kept=kept)
        grads = made.backward(dout, q, k, v, out, lse, plan, kept=kept)
        worst = max(worst, *errors((out, lse, *grads), wanted, layout, rank))
    return list(map(str, made.transports)), worst


def failed_trials(size):
    """The refusal on all ranks where one rank gets other bytes than were sent."""
    group, trial = dist.group.WORLD, SharedMemoryLink.trial

    def broken(link):
        return trial(link) or ("other bytes came" if link.index == 1 else None)

    with mock.patch.object(SharedMemoryLink, "trial", broken), mock.patch.object(links, "_LINKS", {}):
        return said(lambda: links_of({"ring": group}, torch.device("cpu"), Transport.COPY_ENGINE))


@contextmanager
def little_memory(nbytes):
    """Files and shared memory of at most so many bytes, on rank 1."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def mappings():
    """Shared memory of links that this process has mapped."""
    return sum("memfd:longca" in line for line in Path("/proc/self/maps").read_text().splitlines())


def mapped_pages():
    """Pages of shared memory of links that this process has mapped."""
    lines = (line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:longca" in line)
    ends = ([int(end, 16) for end in place.split("-")] for place, *_ in lines)
    return sum(end - start for start, end in ends) // mmap.PAGESIZE


def windows_that_do_not_fit(size):
    """The error on this rank, the mappings that it leaves, and the largest error of the next call."""
    mask, mesh, given = mask_of("causal", 64, ()), mesh_of((("ulysses", size),)), inputs(64, (8, 8), "float64")
    about = {"strategy": "ulysses", "mesh": mesh, "kernel": "naive", "placement": "contiguous"}
    layout = longca.layout(mask, heads=(8, 8), head_dim=8, dtype="float64", **about)
    mine = [layout.shard(x, mesh.get_rank()) for x in given]
    mapped, window = [], SharedMemoryLink.window

    def limited(link, *asked):
        mapped.append(mappings())
        with little_memory(4096):
            return window(link, *asked)

    gc.collect()  # windows of earlier calls
    link = link_between(size)
    arena = Arena(link)  # calls take it, so that its window is new
    with mock.patch.object(pushed_heads, "arena_of", return_value=arena):
        mask = longca.masks.SliceMask(mask.slices, 64, 64)  # a mask of its own has a plan of its own
        with mock.patch.object(SharedMemoryLink, "window", limited):
            refusal = said(lambda: attend(mask, mine, transport="copy_engine", **about))
        left = mappings() - mapped[0]
        results = attend(mask, mine, transport="copy_engine", **about)
    return refusal, left, max(errors(results, attend(mask, given), layout, mesh.get_rank()))


def calls_that_raise(size, strategy, sizes, on):
    """Errors of a call after one that raised in the kernel, on all ranks, of the forward or the backward."""
    mask, mesh, given = mask_of("causal", 60, ()), mesh_of(sizes), inputs(60, (8, 8), "float64")
    about = {"strategy": strategy, "mesh": mesh, "kernel": "naive", "placement": "contiguous"}
    layout = longca.layout(mask, heads=(8, 8), head_dim=8, dtype="float64", **about)
    rank = rank_of(sizes, None)
    mine, raised = [layout.shard(x, rank) for x in given], []
    for turn in range(3):
        shifted = [x + turn for x in mine]
        try:
            with mock.patch.object(Naive, on, side_effect=ArithmeticError("a test's")):
                attend(mask, shifted, transport="copy_engine", **about)
        except ArithmeticError as error:
            raised.append(str(error))
    with mock.patch.object(SharedMemoryLink, "_push", slowly):
        results = attend(mask, mine, transport="copy_engine", **about)
    return raised, max(errors(results, attend(mask, given), layout, rank))


def slowly(link, index, into, source):
    """A push that takes its time, so that a peer that does not wait for it reads other rows."""
    link._pusher.add(index, (lambda: time.sleep(0.02) or into.copy_(source), False))


def changing_lengths(size):
    """Errors of calls whose lengths go up and down, each of two plans in turn."""
    mesh, found = mesh_of((("ulysses", size),)), []
    about = {"strategy": "ulysses", "mesh": mesh, "kernel": "naive", "placement": "contiguous"}
    for seqlen in (40, 90, 7, 91, 40, 3):
        mask, given = mask_of("causal", seqlen, ()), inputs(seqlen, (8, 2), "float64")
        layout = longca.layout(mask, heads=(8, 2), head_dim=8, dtype="float64", **about)
        mine = [layout.shard(x, mesh.get_rank()) for x in given]
        results = attend(mask, mine, transport="copy_engine", **about)
        found.append(max(errors(results, attend(mask, given), layout, mesh.get_rank())))
    return found


def heads_in_many_ranges(size, most):
    """The largest error of usp where the tokens of a rank are in more ranges than are pushed one by one."""
    sizes = (("ring", size // 2), ("ulysses", 2))
    mask, mesh, given = mask_of("causal", 101, ()), mesh_of(sizes), inputs(101, (8, 2), "float64")
    about = {"strategy": "usp", "mesh": mesh, "kernel": "naive", "placement": "zigzag"}
    layout = longca.layout(mask, heads=(8, 2), head_dim=8, dtype="float64", **about)
    rank = mesh.get_coordinate()[0] * 2 + mesh.get_coordinate()[1]
    with mock.patch.object(pushed_heads, "MOST_RANGES", most):
        mask = longca.masks.SliceMask(mask.slices, 101, 101)  # a mask of its own has a plan of its own
        results = attend(mask, [layout.shard(x, rank) for x in given], transport="copy_engine", **about)
    return max(errors(results, attend(mask, given), layout, rank))


def what_is_left(size):
    """Mapped pages, threads and window bytes of links beyond those before: with a plan, without, and without links."""
    mask, mesh = mask_of("causal", 60, ()), mesh_of((("ulysses", size),))
    layout = longca.layout(mask, strategy="ulysses", mesh=mesh, heads=(8, 8), head_dim=8, dtype="float64")
    q, k, v, dout = (layout.shard(x, mesh.get_rank()) for x in inputs(60, (8, 8), "float64"))
    gc.collect()
    until_threads_are(0)  # those of earlier jobs finish what they were given
    gc.collect()
    before = mapped_pages(), link_threads(), window_bytes()
    own = {"ulysses": SharedMemoryLink(mesh.get_group(), deadline=60)}
    with mock.patch.object(exchange, "links_of", return_value=own):
        made = longca.registry().load_strategy("ulysses")(mesh, transport=Transport.COPY_ENGINE)
    plan = made.plan(problem_of(mask, q, k), layout, Naive())
    out, lse = made.forward(q, k, v, plan)
    made.backward(dout, q, k, v, out, lse, plan)
    during = mapped_pages(), link_threads(), window_bytes()
    del plan, own
    gc.collect()
    without_plan = mapped_pages(), link_threads(), window_bytes()
    del made
    gc.collect()
    until_threads_are(before[1])
    after = mapped_pages(), link_threads(), window_bytes()
    return [[now - then for now, then in zip(each, before, strict=True)] for each in (during, without_plan, after)]


def until_threads_are(count):
    """Waits a few seconds until no more threads of links are left."""
    end = time.monotonic() + 5
    while link_threads() > count and time.monotonic() < end:
        time.sleep(0.01)


def link_threads():
    """Threads of links."""
    return sum(thread.name == "longca-link" for thread in threading.enumerate())
