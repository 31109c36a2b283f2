import pytest

from longca.manifests import Backward, Device, Offer
from longca.masks import PATTERNS, Form
from longca_bench.conformance.masks import LONG, long_masks, small_masks
from longca_bench.conformance.offer_variant import OVERTAKEN, NotApplicableError, OfferVariant, offer_variants
from longca_bench.conformance.problems import head_dims

CPU, H200 = Device("cpu"), Device("cuda", (9, 0), name="NVIDIA H200")
STATIC = {name for name, pattern in PATTERNS.items() if not pattern.per_head}


def offer(**fields):
    common = {
        "form": Form.ROW_INTERVALS, "dtypes": ("float32",), "backward": Backward.EXTERNAL, "unequal_lengths": True,
        "cpu": True, "verified_on": ">=8.0", "metadata": "O(S)",
    }  # fmt: skip
    return Offer.model_validate({**common, **fields})


@pytest.fixture
def ask(core):
    """Problems of the last of some offers, as if the naive kernel made them."""

    def asked(*offers, device=CPU, **options):
        core.kernels["naive"] = core.manifest("naive").model_copy(update={"offers": offers})
        return OfferVariant(core, "naive", offers[-1], "float32", "backward", device).problems(**options)

    return asked


@pytest.mark.parametrize(
    ("fields", "dims"),
    [
        ({"head_dims": (128, 64, 96)}, (64, 96, 128)),
        ({"head_dims": (256,)}, (256,)),
        ({"head_dims": (128, 64, (192, 128))}, (64, 128, (192, 128))),
        ({"max_head_dim": 256, "head_dim_multiple": 8}, (64, 256, 40)),
        ({"max_head_dim": 256, "head_dim_multiple": 8, "unequal_head_dims": True}, (64, 256, 40, (256, 40), (40, 256))),
        ({}, (64, 128, 43)),
        ({"max_head_dim": 32}, (32,)),
        ({"head_dim_multiple": 96}, (96,)),
    ],
)
def test_head_dims(fields, dims):
    assert head_dims(offer(**fields)) == tuple(dim if isinstance(dim, tuple) else (dim, dim) for dim in dims)


def test_every_head_dim_is_asked_and_the_first_with_every_mask(ask):
    found = ask(offer(head_dims=(64, 128)))
    dims = [problem.head_dim for _, problem in found]
    assert dims.count(64) > 30
    assert dims.count(128) == 3
    assert all(label.endswith("of 128") for label, problem in found if problem.head_dim == 128)
    assert all(problem.concrete_mask.seqlen_k < LONG for _, problem in found)


def test_gpus_get_every_static_pattern_over_many_tiles(ask):
    assert {label.partition(" ")[0] for label, _ in long_masks()} == STATIC
    found = ask(offer(max_head_dim=256), device=H200)
    long = [problem for _, problem in found if problem.concrete_mask.seqlen_q == LONG and problem.mask.pattern]
    assert len(long) >= len(STATIC)
    assert {(problem.head_dim, problem.heads_q, problem.heads_kv) for problem in long} == {(128, 8, 1)}
    mha = ask(offer(head_dims=(64, 192), gqa=False), device=H200)
    assert {(p.head_dim, p.heads_q) for _, p in mha if p.concrete_mask.seqlen_q == LONG} == {(64, 3)}


def test_an_offer_behind_a_faster_one_is_reached_by_asking_for_equal_bits(ask):
    found = ask(offer(), offer(deterministic=True))
    assert all(problem.deterministic and "deterministic" in label for label, problem in found)
    assert not ask(offer(deterministic=True))[0][1].deterministic


def test_an_offer_with_a_soft_cap_is_asked_for_both_and_behind_one_without_for_caps_alone(ask):
    found = [problem.softcap for _, problem in ask(offer(softcap=True))]
    assert None in found
    assert len(set(found)) == 2
    assert all(problem.softcap and "soft cap" in label for label, problem in ask(offer(), offer(softcap=True)))


@pytest.mark.parametrize(
    ("offers", "reason"),
    [
        ([offer(), offer()], OVERTAKEN),
        ([offer(cpu=False)], "runs on CUDA devices"),
        ([offer(requires=("no-such-package",))], "no-such-package"),
        ([offer(dtypes=("bfloat16",))], "float32 was asked"),
        ([offer(form=Form.LAYERS, most=1), offer(form=Form.VARLEN)], OVERTAKEN),
    ],
)
def test_why_there_are_none(ask, offers, reason):
    with pytest.raises(NotApplicableError) as refusal:
        ask(*offers)
    assert reason in str(refusal.value)


def test_a_form_that_no_mask_has_is_no_earlier_offers_doing(ask):
    with pytest.raises(NotApplicableError, match=r"^no mask here has a form"):
        ask(offer(form=Form.BLOCK_SPARSE), masks=[small_masks()[0]])


BLOCKS = {"form": Form.BLOCK_SPARSE, "block_sizes": (64,), "mask_heads": "query"}


def test_masks_of_several_kv_heads_are_asked_where_groups_share_them(ask):
    heads = [(p.heads_q, p.heads_kv, p.concrete_mask.heads) for _, p in ask(offer(**BLOCKS))]
    assert set(heads) == {(8, 1, 1), (3, 3, 1), (4, 2, 2), (3, 3, 3), (8, 1, 8)}
    alone = [(p.heads_q, p.heads_kv) for _, p in ask(offer(**BLOCKS, gqa=False))]
    assert set(alone) == {(3, 3)}


def test_gpus_get_blocks_over_many_tiles(ask):
    found = ask(offer(**{**BLOCKS, "block_sizes": None}, variable_blocks=True, head_dims=(128,)), device=H200)
    long = {problem.concrete_mask for _, problem in found if problem.concrete_mask.seqlen_q == LONG}
    assert {(mask.block_size, mask.heads) for mask in long} == {
        (block, heads) for block in (64, 128, None) for heads in (1, 2, 3, 8)
    }


def test_a_pair_is_examined_where_both_halves_take_the_problem(core):
    narrow = tuple(each.model_copy(update={"head_dims": (64,)}) for each in core.manifest("naive").offers)
    core.kernels["naive"] = core.manifest("naive").model_copy(update={"offers": narrow})
    asked = [
        problem
        for variant in offer_variants(core, "naive+sdpa", CPU)
        if variant.offer.cpu
        for _, problem in variant.problems()
    ]
    assert {problem.head_dim for problem in asked} == {64}
