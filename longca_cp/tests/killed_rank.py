"""A world whose rank 1 is killed in the middle of a push. The other ranks print what they say. Run by `test_links`."""

import datetime
import json
import multiprocessing
import os
import sys
import tempfile
from math import prod

import jobs  # beside this file, which is run as a script
import link_jobs
import torch
import torch.distributed as dist

#: Seconds until a link gives up.
DEADLINE = 4.0


def work(rank, strategy, sizes, store):
    """Runs the call on one rank."""
    torch.set_num_threads(1)
    size = prod(ranks for _, ranks in sizes)
    about = {"rank": rank, "world_size": size, "timeout": datetime.timedelta(seconds=60)}
    dist.init_process_group("gloo", store=dist.FileStore(store, size), **about)
    kind, text, seconds = link_jobs.dying(rank, strategy, sizes, DEADLINE)
    os.write(1, f"{rank}\t{kind}\t{text}\t{seconds}\n".encode())  # at once: other ranks write there too


def main(strategy, sizes):
    """Waits for all ranks. Exits with 1 if one of them hangs.

    Args:
        strategy: Name of the strategy.
        sizes: Each axis with its ranks.
    """
    jobs.prepare()
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=work, args=(rank, strategy, sizes, f"{folder}/store"), daemon=True)
            for rank in range(prod(size for _, size in sizes))
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(timeout=60)
        sys.exit(any(rank.is_alive() for rank in ranks))


if __name__ == "__main__":
    main(sys.argv[1], tuple(map(tuple, json.loads(sys.argv[2]))))
