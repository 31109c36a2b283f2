"""Trees of prompts show what walking the parents of each node shows."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import longca
from longca import masks
from longca.errors import MaskError
from longca.masks import Form
from longca_bench.cli.app import app

from .strategies import show

#: A question with an answer, a second turn in two versions, another answer, and a question of its own.
TREE = {"parents": [-1, 0, 1, 1, 0, -1], "lengths": [5, 3, 1, 4, 6, 2]}


@st.composite
def nodes(draw, depth_first):
    """The parents and the lengths of some trees: depth-first, or in any order with parents before children."""
    parents, path = [], []
    for node in range(draw(st.integers(1, 8))):
        parents.append(draw(st.sampled_from([-1, *(path if depth_first else range(node))])))
        path = [*path[: path.index(parents[-1]) + 1], node] if parents[-1] in path else [node]
    return parents, draw(st.lists(st.integers(1, 4), min_size=len(parents), max_size=len(parents)))


def paths(parents, lengths):
    """For each node, the tokens from its root to its own last token."""
    stops = np.cumsum(lengths)
    tokens = [list(range(stop - length, stop)) for stop, length in zip(stops, lengths, strict=True)]
    found = []
    for node in range(len(parents)):
        path, at = [], node
        while at != -1:
            path, at = tokens[at] + path, parents[at]
        found.append(path)
    return found


@pytest.mark.parametrize("depth_first", [True, False])
@given(data=st.data())
def test_a_token_sees_its_path_and_its_position_is_its_depth(data, depth_first):
    parents, lengths = data.draw(nodes(depth_first))
    seen, position = np.zeros((sum(lengths), sum(lengths)), int), np.empty(sum(lengths), int)
    for path in paths(parents, lengths):
        for depth, token in enumerate(path):
            seen[token, path[: depth + 1]], position[token] = 1, depth
    mask = masks.tree(np.array(parents), torch.tensor(lengths))
    assert np.array_equal(show(mask.slices, *seen.shape), seen)
    assert np.array_equal(mask.visible_keys()[0] - 1, position)
    if depth_first:
        assert len(mask.slices) <= len(parents)
        assert mask.count(Form.COLUMN_INTERVALS) == 1
    window = data.draw(st.integers(1, 9))
    near = seen * (position[:, None] - position < window)
    assert np.array_equal(masks.within_window(mask, window).dense(), near)


def test_some_trees_are_masks_of_patterns():
    lengths = [9, 12, 1, 13]
    assert masks.tree([-1, 0, 0, 0], lengths) == masks.build("shared_question", 35, documents=lengths)
    assert masks.tree([-1] * 4, lengths) == masks.build("causal_document", 35, documents=lengths)
    assert masks.tree([-1, 0, 1, 2], lengths).slices == masks.build("causal", 35).slices


@pytest.mark.parametrize(
    "mask",
    [
        masks.build("prefix_lm_causal", 19, prefix=9),
        masks.from_dense(torch.rand(15, 19, generator=torch.Generator().manual_seed(0)) < 0.5),
    ],
)
def test_a_window_counts_the_tokens_of_a_sequence_that_is_no_tree(mask):
    before = np.arange(mask.seqlen_q)[:, None] + (mask.seqlen_k - mask.seqlen_q) - np.arange(mask.seqlen_k)
    assert np.array_equal(masks.within_window(mask, 5).dense(), mask.dense() & (before < 5))
    with pytest.raises(MaskError, match="window is 0"):
        masks.within_window(mask, 0)


def test_attention_of_a_tree_is_that_of_each_of_its_paths():
    mask = masks.tree(**TREE)
    q, k, v = torch.randn(3, mask.seqlen_q, 2, 8, dtype=torch.float64).unbind()
    position = torch.from_numpy(mask.visible_keys()[0] - 1)

    def attend(tokens, position, mask):
        angle = position[:, None, None] / 10.0 ** torch.arange(4)
        turned = [torch.view_as_complex(x[tokens].unflatten(-1, (4, 2))) * torch.polar(angle**0, angle) for x in (q, k)]
        return longca.attention(*(torch.view_as_real(x).flatten(-2) for x in turned), v[tokens], mask, kernel="naive")

    out = attend(torch.arange(mask.seqlen_q), position, mask)
    for path in paths(**TREE):
        alone = attend(torch.tensor(path), torch.arange(len(path)), masks.build("causal", len(path)))
        torch.testing.assert_close(out[path], alone)


@pytest.mark.parametrize(
    ("parents", "lengths", "said"),
    [
        ([], [], r"parents is \[\]; give a list with one integer for each node, -1 for no parent"),
        ([-1, None], [1, 1], "give a list with one integer"),
        ([-1], [1.5], r"lengths is \[1.5\]; give a list with one integer"),
        ([-1, 0], [1], "2 parents and 1 lengths"),
        ([-1, 0], [4, 0], "node 1 has length 0; each needs at least 1 token"),
        ([-1, 2], [4, 4], "node 1 has parent 2, and the nodes are 0 to 1; give -1 for a root"),
        ([-1, -2], [4, 4], "node 1 has parent -2"),
        ([-1, 1], [4, 4], "node 1 does not come after its parent 1; list parents before children"),
        ([1, -1], [4, 4], "node 0 does not come after its parent 1; list parents before children"),
        ([-1, 0], [2**30, 1], "lengths from 1 to"),
    ],
)
def test_lists_that_are_no_tree_are_refused(parents, lengths, said):
    with pytest.raises(MaskError, match=said):
        masks.tree(parents, lengths)


def test_commands_take_a_file_of_trees(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, several = json.dumps(TREE), [TREE, {"parents": [-1, 0], "lengths": [7, 2]}]
    files = {"t.json": one, "l.json": json.dumps(several), "l.jsonl": "\n".join(map(json.dumps, several)) + "\n\n"}
    for name, text in (files | {"bad.jsonl": one + '\n{"parents": [0], "lengths": [1]}', "no.json": "{}"}).items():
        Path(name).write_text(text)

    def run(*words):
        return CliRunner().invoke(app, [*words, "--json"])

    forest = masks.pack([masks.tree(**each) for each in several])
    for name, mask in (("t.json", masks.tree(**TREE)), ("l.json", forest), ("l.jsonl", forest)):
        assert json.loads(run("show-mask", "--tree", name).stdout)["digest"] == mask.digest
    assert masks.build("l.jsonl & causal", forest.seqlen_q) == forest
    assert json.loads(run("recommend", "--tree", "t.json", "--device", "h200").stdout)["choices"]
    assert run("show-layout", "ring_p2p", "--tree", "t.json", "--gpus", "2").exit_code == 0
    assert run("run", "--tree", "t.json", "--dry-run", "--device", "cpu").exit_code == 0
    for words, said in (
        (["show-mask"], "give a pattern such as causal, or --tree FILE"),
        (["show-mask", "causal", "--tree", "t.json"], "give one of them"),
        (["show-mask", "--tree", "t.json", "--seqlen", "22"], "t.json is a mask of 21 × 21 tokens"),
        (["show-mask", "--tree", "bad.jsonl"], "bad.jsonl: tree 2: node 0 does not come after its parent 0"),
        (["show-mask", "--tree", "no.json"], "no.json holds no mask; write seqlen_q"),
        (["run", "quick", "--tree", "t.json"], "give one of them"),
    ):
        assert said in str(run(*words).exception)
