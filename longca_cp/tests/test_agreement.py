"""Ranks of a gloo world whose calls differ: all are told, no data move, and the next call is right."""

from .test_strategies import EXACT, sizes

#: What the last rank's call differs in, and what the ranks are told of it.
DIFFERENCES = {
    "mask": "mask: {others} causal of 40 tokens (",
    "dtype": "dtype: {others} float64, {last} float32.",
    "direction": "direction: {others} forward, {last} backward.",
    "transport": "transport: {others} auto, {last} collectives.",
    "strategy": "strategy: {others} ring_p2p, {last} ring_all_gather.",
    "placement": "placement: {others} zigzag, {last} contiguous.",
    "kernel": "kernel: {others} naive, {last} sdpa.",
    "softmax_scale": "softmax_scale: {others} None, {last} 0.5.",
    "softcap": "softcap: {others} None, {last} 2.0.",
    "deterministic": "deterministic: {others} False, {last} True.",
}
#: What the last rank alone does wrong, and the error that it raises.
FAILURES = {
    "shard length": "q has {short} tokens and k {short}, but rank {rank} of {size} holds",
    "no tensors": "q",
    "unknown strategy": "unknown strategy 'ring'",
}


@sizes(4)
def test_a_difference_or_a_failure_of_one_rank_reaches_all_ranks(world):
    size, last, others = 4, 3, "ranks 0, 1, 2 have"
    found = world.run("disagreements", size, [*DIFFERENCES, *FAILURES])
    for rank, of_rank in enumerate(found):
        for what, ((kind, message), error) in zip((*DIFFERENCES, *FAILURES), of_rank, strict=True):
            assert error < EXACT, "the next call is right"
            if what in DIFFERENCES:
                assert kind == "RequestError"
                assert "no rank has moved data" in message
                assert DIFFERENCES[what].format(others=others, last=f"rank {last} has") in message
                assert message.count(": rank") == 1, "nothing else differs"
                continue
            assert FAILURES[what].format(short=40 // size - 1, rank=last, size=size) in message
            if rank != last:
                assert kind == "RequestError"
                assert message.startswith(f"rank {last} failed, and no rank has moved data in this call. Rank {last} ")


@sizes(2)
def test_ranks_that_reuse_masks_in_another_order_are_told(world):
    """They are known masks of equal shapes, so that no call fails by itself."""
    for told, error in world.run("known_masks_in_another_order", world.size):
        *before, (kind, message) = told
        assert before == [None] * 2
        assert kind == "RequestError"
        assert "no rank has moved data in this call" in message
        assert "calls before: " in message
        assert error < EXACT
