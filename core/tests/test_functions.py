"""Return values of manifests' functions as JSON: all of them come back, and what was changed on the way is refused."""

import json

import numpy as np
import pytest

from longca import Layout, Step
from longca.discovery.functions import as_plain, from_plain
from longca.manifests.memory import StrategyMemory
from longca.manifests.schedule import Move, Phase

LAYOUT = Layout(
    (
        (Step(((0, 4), (8, 12)), ((0, 16),), (0, 4), (0, 2)), Step(((0, 4),), (), (0, 4), (0, 2))),
        (),
        (Step(((4, 8),), ((0, 16),), (0, 2), (0, 1)),),
    ),
    (((0, 4), (8, 12)), (), ((4, 8), (12, 16))),
)
PHASES = (
    Phase(0, moves=(Move("p2p", "ring", np.int64(8), 8, 2, "k, v"),), beside=(True, False), touched=16),
    Phase(share=0.5),
)


def sent(field, value):
    return json.loads(json.dumps(as_plain(field, value)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layout", LAYOUT),
        ("layout", Layout(((),), (((0, 1),),))),
        ("schedule", PHASES),
        ("schedule", ()),
        ("memory", StrategyMemory(1, 2**50, 3)),
        ("workspace", 2**40),
    ],
)
def test_what_is_sent_comes_back(field, value):
    assert from_plain(field, sent(field, value)) == value


PLAIN = sent("layout", LAYOUT)
PACKED = sent("layout", Layout(((),), (((0, 99),),)))
WRONG = {
    "no mapping": [],
    "nothing": {},
    "a part less": {**PLAIN, "heads": PACKED["heads"]},
    "other bounds": {**PLAIN, "bounds": PACKED["bounds"]},
    "other shards": {**PLAIN, "shards": PACKED["shards"]},
    "other parts": {**PLAIN, "parts": PACKED["parts"]},
    "half a number": {**PLAIN, "table": "AAAA"},
    "no base64": {**PLAIN, "table": "\x00"},
    "no text": {**PLAIN, "table": 7},
    "ranges of one": {**PLAIN, "parts": PLAIN["parts"][:1]},
    "a negative step": {**PLAIN, "table": "//////////8AAAAAAAAAAAAAAAAAAAAA" * 3},
}


@pytest.mark.parametrize("plain", WRONG.values(), ids=WRONG)
def test_a_changed_layout_is_refused(plain):
    with pytest.raises(ValueError, match=r"layout|steps?|ranges|shard|token|reshape|buffer|base64|character|unpack"):
        from_plain("layout", plain)


@pytest.mark.parametrize(
    ("field", "plain"),
    [
        ("schedule", [{"step": "x"}]),
        ("schedule", 7),
        ("memory", {"forward": 1}),
        ("workspace", "x"),
        ("workspace", None),
    ],
)
def test_other_data_are_refused(field, plain):
    with pytest.raises(ValueError, match="validation error"):
        from_plain(field, plain)
