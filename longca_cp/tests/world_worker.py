"""The processes of a world: take jobs from the standard input until that is closed. Run by `worlds`.

One process imports the modules of jobs, which takes longer than most jobs. It is then forked into all ranks.
"""

import datetime
import importlib
import multiprocessing
import os
import pickle
import sys
import threading
import traceback
import warnings
from multiprocessing.connection import wait
from pathlib import Path

import jobs  # beside this file, which is run as a script
import torch
import torch.distributed as dist

from longca_cp import overlap

overlap.CHUNK_BYTES = 256  # the tensors of tests are small, and are pushed in chunks all the same

#: The modules of jobs, beside this file.
MODULES = [importlib.import_module(path.stem) for path in sorted(Path(__file__).parent.glob("*jobs.py"))]
#: A collective that takes longer raises on all ranks that wait for it.
TIMEOUT = datetime.timedelta(seconds=120)


def work(rank, size, store, pipe):
    """Runs jobs on one rank."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        while (asked := pipe.recv()) is not None:
            job, args, kwargs = asked
            try:
                answer = (
                    False,
                    getattr(next(module for module in MODULES if hasattr(module, job)), job)(*args, **kwargs),
                )
            except Exception:
                answer = True, traceback.format_exc()
            pipe.send(answer)
    finally:
        dist.destroy_process_group()


def main(size, store):
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not come between answers
    jobs.prepare()
    context = multiprocessing.get_context("fork")
    pipes, processes = {}, []
    for rank in range(size):
        mine, theirs = context.Pipe()
        processes.append(context.Process(target=work, args=(rank, size, store, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        pipes[mine] = rank
    threading.Thread(target=relay, args=(dict(pipes), answers), daemon=True).start()
    while True:
        try:
            asked = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        for pipe in pipes:
            pipe.send(asked)
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join(timeout=5)


def relay(pipes, answers):
    """Passes on the answers of the ranks."""
    while pipes:
        for pipe in wait(list(pipes)):
            try:
                pickle.dump((pipes[pipe], *pipe.recv()), answers)
            except EOFError:
                pickle.dump((pipes.pop(pipe), True, "its process ended"), answers)
            answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
