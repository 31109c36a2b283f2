"""recommend for the five strategies: choices on some devices, refusals by name, and output."""

import subprocess
import sys

import pytest

import longca
from longca import masks

CAUSAL = masks.build("causal", 16384)
RINGS = {"ring_p2p", "ring_all_gather"}
ASK = ("recommend", "causal", "--seqlen", "16384", "--device", "h200", "--kernel", "fa3")


@pytest.fixture(autouse=True)
def history(tmp_path, monkeypatch):
    """This machine's evidence, of which there is none."""
    monkeypatch.setenv("LONGCA_HISTORY", str(tmp_path / "history.jsonl"))


def ask(mask=CAUSAL, **options):
    return longca.recommend(mask, **{"heads": (32, 8), "device": "h200", "kernels": ("fa3", "fa4"), **options})


def run(*arguments):
    ran = subprocess.run([sys.executable, "-m", "longca", *arguments], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def reasons(found, strategy):
    return " ".join(" ".join(one.reasons) for one in found.refused if one.strategy == strategy)


def test_each_of_the_five_is_ranked_on_a_host():
    found = ask(ranks=8)
    assert len({choice.strategy for choice in found.choices}) > 2
    ranked = [choice.seconds.ranked for choice in found.choices]
    assert ranked == sorted(ranked)
    assert all(choice.seconds.ranked >= choice.seconds.total for choice in found.choices)
    assert found.unmeasured == ()
    for name in longca.registry().strategies:
        alone = ask(ranks=8, strategies=(name,))
        assert {choice.strategy for choice in alone.choices} == {name}


def test_a_gpu_without_evidence_is_ranked_by_the_nearest_one():
    here, there = (ask(device=name, ranks=2) for name in ("h100", "h200"))
    assert [one.title for one in here.choices] == [one.title for one in there.choices]
    assert [one.seconds for one in here.choices] == [one.seconds for one in there.choices]
    (note,) = (note for note in here.notes if "evidence" in note)
    assert "no evidence on NVIDIA H100 80GB HBM3. The times are from evidence measured on NVIDIA H200" in note
    assert all("--network" in one.why for one in ask(device="h100", ranks=16).unmeasured)


def test_each_strategy_is_ranked_for_block_sparse_masks():
    blocks = masks.build("uniform_block_sparse", 2**15, block=64, kept=0.1, heads=8, seed=0)
    for name, manifest in longca.registry().strategies.items():
        found = ask(blocks, ranks=8, kernels=("bsa",), strategies=(name,), heads=(64, 8))
        assert [choice.kernel for choice in found.choices[:1]] == ["bsa"], reasons(found, name)
        assert set(found.choices[0].mesh.split(",")) <= {f"{axis}={n}" for axis in manifest.axes for n in range(1, 17)}


def test_heads_that_divide_for_none_leave_rings():
    found = ask(ranks=8, heads=(3, 3))
    assert {choice.strategy for choice in found.choices} == RINGS
    said = reasons(found, "ulysses")
    assert "3 query heads do not divide among the 8 ranks of axis ulysses. Give it a size of 1, 3" in said
    named = [one.strategy for one in found.refused if "do not divide among the 4 ranks" in one.reasons[0]]
    assert named == ["usp on 1 of 2 meshes placed contiguous, zigzag, balanced"]


def test_several_hosts_without_a_network_are_not_ranked():
    found = ask(ranks=16)
    assert (found.choices, found.best) == ((), None)
    assert {one.strategy for one in found.unmeasured} == {*RINGS, "ulysses", "usp", "loongtrain"}
    assert all("--network 400Gb" in one.why for one in found.unmeasured)
    lines = run(*ASK, "--gpus", "16").splitlines()
    assert lines[3].startswith("Nothing can be ranked on 16 × ")
    assert sum("--network" in line for line in lines) == 1


def test_several_hosts_with_a_network_are_ranked_and_their_links_unverified():
    found = ask(ranks=4, per_node=1, network="400Gb")
    assert found.best is not None
    assert sum("(unverified)" in note for note in found.notes) == 1
    slower = ask(ranks=4, per_node=1, network="1Gb")
    assert slower.best.seconds.total > found.best.seconds.total
    assert any("waits" in note and "for links between hosts of 0 GB/s" in note for note in slower.notes)
