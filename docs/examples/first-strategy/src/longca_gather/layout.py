"""The layout of gather_all: each rank has one stretch of the tokens, and its queries meet all keys in one step."""

from collections.abc import Mapping

from longca import Layout, Problem, Step
from longca.errors import UnsupportedError


def layout(problem: Problem, axis_sizes: Mapping[str, int], placement: str) -> Layout:
    """Divides the tokens evenly.

    Raises:
        UnsupportedError: The tokens do not divide by the ranks.
    """
    ranks, tokens = axis_sizes["ring"], problem.mask.seqlen_q
    if tokens % ranks:
        raise UnsupportedError(f"gather_all needs as many tokens on every rank; {tokens} do not divide by {ranks}")
    own = tokens // ranks
    shards = tuple(((own * rank, own * (rank + 1)),) for rank in range(ranks))
    heads = {"heads_q": (0, problem.heads_q), "heads_kv": (0, problem.num_heads_kv)}
    return Layout(tuple((Step(shard, ((0, tokens),), **heads),) for shard in shards), shards)
