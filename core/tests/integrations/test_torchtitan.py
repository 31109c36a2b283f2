"""A Llama of torchtitan computes with LongCA what dense attention computes, on one device and on two ranks."""

import pytest

from .trainer_ranks import needs_trainers, said_by_ranks

pytestmark = [needs_trainers, pytest.mark.slow, pytest.mark.xdist_group("torchtitan")]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return said_by_ranks("torchtitan_ranks.py", tmp_path_factory.mktemp("torchtitan"))


def test_one_device_has_the_oracles_loss_and_gradients(said):
    for rank in said["off"]:
        assert rank["one device"]["off"] < 1e-12
        assert rank["one device"]["tokens"] == 58


@pytest.mark.parametrize("strategy", ["auto", "ulysses", "ring_p2p", "ring_all_gather"])
def test_two_ranks_have_the_oracles_loss_and_gradients(said, strategy):
    found = [rank[strategy] for rank in said["off"]]
    assert all(each["off"] < 1e-6 for each in found), "torchtitan's rotary embeddings and loss are in float32"
    assert sum(each["tokens"] for each in found) == 58
    assert all(each["shape"] == [1, each["tokens"]] for each in found)


def test_losses_of_20_steps_are_those_of_one_device(said):
    for rank in said["off"]:
        alone, sharded = rank["losses"]
        assert len(alone) == 20
        assert min(alone[-2:]) < alone[0] - 0.1
        assert sharded == pytest.approx(alone, rel=1e-5)


@pytest.mark.exhaustive
def test_fsdp2_shards_over_another_dim_of_the_mesh(tmp_path):
    assert said_by_ranks("torchtitan_ranks.py", tmp_path, "fsdp", ranks=4)["fsdp"] < 1e-6


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no masks", "call prepare_batch"),
        ("score_mod", "score_mod="),
        ("out_transform", "out_transform="),
        ("latents", "values of head dim 4 for queries of 8"),
        ("no positions", "has no positions"),
        ("no layers", "no layer of the model has LongCAAttention"),
        ("pixels", "the batch has pixels"),
        ("own masks", "OwnMasks makes masks of its own"),
        ("two strategies", "'ulysses'"),
        ("partial_dtensor", "spmd_backend is partial_dtensor"),
    ],
)
def test_a_feature_that_longca_lacks_is_refused_by_name(said, name, words):
    assert words in said["refused"][name]


def test_a_config_of_torchtitan_takes_longca_in_every_layer(said):
    assert said["config"] == {"trainer": "LongCATrainer", "kernels": ["fa3"]}
