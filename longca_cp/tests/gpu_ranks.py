"""Ranks that run one check of the copy engine, each on its own GPU or all on the only one. Run by `test_copy_engine`.

python gpu_ranks.py CHECK

NCCL has no two ranks on one GPU. There gloo carries the words of the ranks.
"""

import datetime
import gc
import os
import signal
import sys
import tempfile
import time
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import longca
from longca import masks
from longca_cp import overlap
from longca_cp.transports import link
from longca_cp.transports.host_memory import WindowMemoryError
from longca_cp.transports.link import PeerError

overlap.CHUNK_BYTES = 256  # the tensors of checks are small, and are pushed in chunks all the same
SIZE = 2
MESHES = {
    "ulysses": {"ulysses": 2},
    "ring_p2p": {"ring": 2},
    "ring_all_gather": {"ring": 2},
    "usp": {"ring": 2, "ulysses": 1},
    "loongtrain": {"outer": 1, "inner": 1, "heads": 2},
}
#: As bfloat16 rounds sums of this size, where two transports add in different orders.
CLOSE = {"rtol": 2e-2, "atol": 2e-2}


#: Whether both ranks are on one GPU.
SHARED = torch.cuda.device_count() == 1


def mesh_of(strategy):
    sizes = MESHES[strategy]
    return init_device_mesh("cuda", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def drawn(seqlen, seed):
    """q, k, v and dout of all ranks. At one length v has another head dim."""
    random, dim_v = torch.Generator().manual_seed(seed), 32 if seqlen == 1024 else 64
    shapes = (8, 64), (4, 64), (4, dim_v), (8, dim_v)
    return [torch.randn(seqlen, *shape, generator=random).bfloat16() for shape in shapes]


def settings(strategy, mask, mesh):
    """The arguments of a parallel call, and its layout."""
    about = {"strategy": strategy, "mesh": mesh, "kernel": "sdpa", "placement": "contiguous"}
    return about, longca.layout(mask, heads=(8, 4), head_dim=64, dtype="bfloat16", **about)


def alone(strategy, mask, seqlen, mesh, seed=0):
    """This rank's part of out, dq, dk and dv of one device."""
    *qkv, dout = (x.cuda() for x in drawn(seqlen, seed))
    qkv = [x.requires_grad_() for x in qkv]
    out = longca.attention(*qkv, mask, kernel="sdpa")
    _, layout = settings(strategy, mask, mesh)
    results = [out.detach(), *torch.autograd.grad(out, qkv, dout)]
    return [layout.shard(x, dist.get_rank()) for x in results]


def prepared(strategy, mask, seqlen, mesh, seed=0, apart=False):
    """A function without arguments that gives out, dq, dk and dv of this rank, of inputs that a seed draws.

    If the directions are apart, it goes forward, and gives a function that goes backward.
    """
    about, layout = settings(strategy, mask, mesh)
    *qkv, dout = (layout.shard(x, dist.get_rank()).cuda() for x in drawn(seqlen, seed))
    qkv = [x.requires_grad_() for x in qkv]

    def run():
        out = longca.attention(*qkv, mask, transport="copy_engine", **about)

        def back():
            return [out.detach(), *torch.autograd.grad(out, qkv, dout)]

        return back if apart else back()

    return run


def agree():
    """Strategies give what one device gives, in calls of changing lengths, beside collectives on another stream."""
    noise, beside = torch.ones(1 << (20 if SHARED else 24), device="cuda"), torch.cuda.Stream()
    for strategy in MESHES:
        mesh = mesh_of(strategy)
        for seqlen in (512, 2048, 1024, 512, 4096):
            for mask in (masks.build("causal", seqlen), masks.build("full", seqlen)):
                wanted = alone(strategy, mask, seqlen, mesh, seqlen)
                pushed = prepared(strategy, mask, seqlen, mesh, seqlen)
                for _ in range(5):
                    with torch.cuda.stream(beside):
                        dist.all_reduce(noise)
                        noise.fill_(1)
                    for mine, theirs in zip(pushed(), wanted, strict=True):
                        torch.testing.assert_close(mine, theirs, **CLOSE)


def waits():
    """A call returns to the host while the device of a peer is busy, and its results are right."""
    for strategy in MESHES:
        call = prepared(strategy, masks.build("causal", 2048), 2048, mesh_of(strategy))
        wanted, done = call(), torch.cuda.Event()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        if dist.get_rank() == 1:
            torch.cuda._sleep(6_000_000_000)  # cycles: about three seconds
        found = call()
        done.record()
        assert not done.query(), "the host did not wait for the device"
        torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=0)
        for mine, theirs in zip(found, wanted, strict=True):  # the kernel adds gradients in any order
            torch.testing.assert_close(mine, theirs, **CLOSE)


def layers():
    """Layers of several masks share windows: all go forward, and then all go backward from the last one on."""
    shapes = [("causal", 2048), ("full", 512), ("causal", 1024), ("causal", 2048)]
    for strategy in MESHES:
        mesh = mesh_of(strategy)
        about = [(strategy, masks.build(kind, n), n, mesh, seed) for seed, (kind, n) in enumerate(shapes)]
        calls = [prepared(*each, apart=True) for each in about]
        results = [x for layer in reversed([call() for call in calls]) for x in layer()]
        wanted = [x for each in reversed(about) for x in alone(*each)]
        for mine, theirs in zip(results, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, **CLOSE)


def sinks():
    """Sinks belong to the whole softmax by each transport. Ranks that share a GPU have no collectives of it."""
    mask, given = masks.build("causal", 2048), drawn(2048, 0)

    def results(tensors, **about):
        *qkv, dout = (x.cuda() for x in tensors)
        leaves = [x.requires_grad_() for x in (*qkv, torch.linspace(-2, 3, 8, device="cuda"))]
        out = longca.attention(*leaves[:3], mask, sinks=leaves[3], **about)
        return [out.detach(), *torch.autograd.grad(out, leaves, dout)]

    *whole, wanted = results(given, kernel="sdpa")
    for strategy in MESHES:
        about, layout = settings(strategy, mask, mesh_of(strategy))
        mine, right = ([layout.shard(x, dist.get_rank()) for x in tensors] for tensors in (given, whole))
        for transport in ("copy_engine",) if SHARED else ("copy_engine", "collectives"):
            *found, dsinks = results(mine, transport=transport, **about)
            dist.all_reduce(dsinks)
            for one, other in zip((*found, dsinks), (*right, wanted), strict=True):
                torch.testing.assert_close(one, other, **CLOSE)


def full_memory():
    """A window that does not fit on one rank is refused on both, memory is given back, and the next call is right."""
    mask, mesh = masks.build("causal", 8192), mesh_of("ulysses")
    wanted = alone("ulysses", mask, 8192, mesh)
    prepared("ulysses", masks.build("causal", 512), 512, mesh)()
    call = prepared("ulysses", mask, 8192, mesh)
    torch.cuda.empty_cache()
    dist.barrier()
    free = torch.cuda.mem_get_info()[0]
    dist.barrier()  # ranks that share a GPU share its memory
    hog = torch.empty((free >> 21 << 21) - (8 << 20), dtype=torch.uint8, device="cuda") if dist.get_rank() else None
    dist.barrier()
    with mock.patch("torch.cuda.empty_cache"), pytest.raises(WindowMemoryError, match="rank 1: "):
        call()
    del hog
    gc.collect()
    torch.cuda.empty_cache()
    dist.barrier()
    assert torch.cuda.mem_get_info()[0] > free - (64 << 20)
    for mine, theirs in zip(call(), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


def killed():
    """A peer that is killed before it posts is named within the deadline, and results are no numbers."""
    mesh = mesh_of("ulysses")
    call = prepared("ulysses", masks.build("causal", 2048), 2048, mesh)
    with mock.patch.object(link, "_timeout", return_value=5.0):
        call()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    out = call()[0]
    torch.cuda.synchronize()
    assert time.monotonic() - began < 20
    assert out.isnan().any()
    with pytest.raises(PeerError, match="of rank 1, which did not come"):
        call()
    os._exit(0)  # a process group that has lost a rank may hang as it ends


CHECKS = {check.__name__: check for check in (agree, waits, layers, sinks, full_memory, killed)}


def work(rank, check, store):
    """Runs a check on one rank."""
    device = torch.device("cuda", 0 if SHARED else rank)
    torch.cuda.set_device(device)
    about = {"rank": rank, "world_size": SIZE, "timeout": datetime.timedelta(seconds=120)}
    about |= {"backend": "gloo"} if SHARED else {"backend": "nccl", "device_id": device}
    dist.init_process_group(store=dist.FileStore(store, SIZE), **about)
    CHECKS[check]()
    torch.cuda.synchronize()
    dist.barrier()
    os._exit(0)


def main(check):
    """Exits with 1 if a rank fails or hangs. The killed rank does not count."""
    if SHARED:
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    context = torch.multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=work, args=(rank, check, f"{folder}/store")) for rank in range(SIZE)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(timeout=240)
        ended = [rank.exitcode for rank in ranks]
        for rank in ranks:
            rank.kill()
        dies = 1 if check == "killed" else None
        sys.exit(ended != [-signal.SIGKILL if rank == dies else 0 for rank in range(SIZE)])


if __name__ == "__main__":
    main(sys.argv[1])
