"""The examples for torchtitan and Megatron compute on one rank and on two what these compute themselves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAINERS = Path(sys.prefix) / "trainers"

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.slow,
    pytest.mark.xdist_group("trainers"),
    pytest.mark.skipif(not TRAINERS.is_dir(), reason="`make test-all` installs torchtitan and megatron-core"),
]


def printed_by_ranks(script, *arguments, ranks=2):
    """What the ranks of a script beside this file print, as JSON."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TRAINERS)}
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", str(ranks)]
    command = [*torchrun, str(Path(__file__).with_name(script)), *arguments]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_a_layer_of_megatron_has_megatrons_output_and_gradients():
    found = printed_by_ranks("megatron_ranks.py")
    assert len(found["off"]) == 2
    for rank in found["off"]:
        assert len(rank) == 18
        assert max(rank.values()) < 1e-12, rank
    for name, words in {
        "attention_dropout": "'attention_dropout': 0.1",
        "softmax_type": "'softmax_type': 'learnable'",
        "window_size": "'window_size': (4, 4)",
        "cp_comm_type": "'cp_comm_type': 'a2a'",
        "attention_mask": "--no-create-attention-mask-in-dataloader",
        "decode": "as many queries as keys",
        "odd": "pad each document to a multiple of 4",
    }.items():
        assert words in found["refused"][name]


def test_a_llama_of_torchtitan_has_the_oracles_loss_and_gradients():
    found = printed_by_ranks("torchtitan_ranks.py")
    for rank in found["off"]:
        assert rank["one device"]["off"] < 1e-12
        assert rank["one device"]["tokens"] == 58
    for strategy in ("auto", "ulysses", "ring_p2p", "ring_all_gather"):
        ranks = [rank[strategy] for rank in found["off"]]
        assert all(each["off"] < 1e-6 for each in ranks), "torchtitan's rotary embeddings and loss are in float32"
        assert sum(each["tokens"] for each in ranks) == 58
    for name, words in {
        "no masks": "call prepare_batch",
        "score_mod": "score_mod",
        "latents": "one head dim",
        "no positions": "a batch with positions",
        "no layers": "needs LongCAAttention in each layer",
        "pixels": "pixels",
        "own masks": "makes masks of its own",
        "two strategies": "'ulysses'",
        "partial_dtensor": "needs spmd_backend spmd_types",
    }.items():
        assert words in found["refused"][name]
    assert found["config"] == {"trainer": "LongCATrainer", "kernels": ["fa3"]}


def test_fsdp2_shards_over_another_dim_of_the_mesh():
    assert printed_by_ranks("torchtitan_ranks.py", "fsdp", ranks=4)["fsdp"] < 1e-6
