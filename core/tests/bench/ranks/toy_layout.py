"""The layout of the strategies in `toys.py`. It is asked in a process with a deadline, and so imports no torch."""

from itertools import pairwise

from longca.errors import UnsupportedError
from longca.manifests import Layout, Step


def layout(problem, axis_sizes, placement):
    """Each rank its own queries, and all keys; `evenly` or a rank `lazily` left with next to nothing."""
    ranks, tokens = axis_sizes["toy"], problem.concrete_mask.seqlen_q
    if placement == "never":
        raise UnsupportedError("nobody is ever placed so.")
    first = tokens // ranks if placement == "evenly" else 1
    bounds = [0, *(first + (tokens - first) * i // max(1, ranks - 1) for i in range(ranks))]
    bounds[-1] = tokens
    shards = tuple(((start, stop),) for start, stop in pairwise(bounds))
    heads = (0, problem.heads_q), (0, problem.heads_kv)
    return Layout(tuple((Step(shard, ((0, tokens),), *heads),) for shard in shards), shards)
