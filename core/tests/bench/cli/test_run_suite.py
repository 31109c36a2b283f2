"""The first argument of `longca run` is a suite, the file of one, or a mask pattern with options."""

import pytest

from longca.errors import RequestError
from longca.masks import PATTERNS, get_pattern
from longca_bench.cli.mask_options import MaskOptions
from longca_bench.cli.run_options import RunOptions, chosen_suite
from longca_bench.suites.cases import Selection
from longca_bench.suites.suite import load_suite


def choose(subject, selection=Selection(), ranks=None, *, head_dim=None, dtype=None, softcap=None, **options):
    asked = RunOptions(head_dim=head_dim, dtype=dtype, softcap=softcap)
    return chosen_suite(subject, asked, MaskOptions(**options), selection, ranks)


def test_a_suite_goes_before_a_pattern_of_its_name(monkeypatch):
    monkeypatch.setitem(PATTERNS, "quick", get_pattern("causal"))
    selection = Selection(kernels=("naive",))
    assert choose("quick", selection) == (load_suite("quick"), selection)


def test_options_that_are_not_given_refuse_no_suite():
    assert choose("quick", window=None, documents=None)[0] == load_suite("quick")


def test_a_pattern_alone():
    suite, selection = choose("causal_sliding_window")
    (sweep,) = suite.sweep
    assert selection == Selection()
    assert (sweep.patterns, sweep.seqlens, sweep.factors) == (("causal_sliding_window",), (4096,), {})
    assert (sweep.kernels, sweep.heads, sweep.head_dims, sweep.dtypes) == (("*",), ("32:8",), (128,), ("bfloat16",))


def test_a_pattern_takes_what_would_narrow_a_suite():
    selection = Selection(
        kernels=("fa3", "fa4"),
        seqlens=(1024, 2048),
        directions=("backward",),
        pairs=True,
        heads=("8:8", "64:8"),
        seeds=(1, 2),
    )
    suite, narrower = choose(
        "uniform_block_sparse",
        selection,
        block=64,
        kept=0.25,
        window=None,
        mask_heads=1,
        head_dim=[64],
        dtype=["float16"],
        softcap=50.0,
    )
    (sweep,) = suite.sweep
    assert narrower == Selection()
    assert sweep.factors == {"uniform_block_sparse": {"block": 64, "kept": 0.25, "heads": 1}}
    assert (sweep.kernels, sweep.seqlens, sweep.directions) == (("fa3", "fa4"), (1024, 2048), ("backward",))
    assert sweep.pairs
    assert sweep.softcap == 50
    assert (sweep.heads, sweep.seeds, sweep.head_dims, sweep.dtypes) == (("8:8", "64:8"), (1, 2), (64,), ("float16",))


def test_the_length_is_that_of_the_documents():
    (sweep,) = choose("causal_document", documents="1000,96,3000")[0].sweep
    assert sweep.seqlens == (4096,)
    assert sweep.factors == {"causal_document": {"documents": [1000, 96, 3000]}}


def test_strategies_are_those_that_are_named_or_all():
    for given, taken in (((), ("*",)), (("ring_p2p",), ("ring_p2p",))):
        (sweep,) = choose("causal", Selection(strategies=given, placements=("zigzag",)), ranks=2)[0].sweep
        assert (sweep.strategies, sweep.placements) == (taken, ("zigzag",))


@pytest.mark.parametrize(
    ("subject", "options", "said"),
    [
        (
            "quick",
            {"documents": "64"},
            "quick is a suite, which takes no --documents",
        ),
        (
            "mine.toml",
            {"lengths": "pile", "mask_heads": 2},
            "mine.toml .* --lengths, --mask-heads",
        ),
        ("quick", {"head_dim": [64], "dtype": ["float16"]}, "--head-dim, --dtype; give a mask pattern"),
        ("quick", {"softcap": 50.0}, "--softcap; give a mask pattern"),
        ("casual", {}, r"unknown suite or mask pattern 'casual'. Suites: .*quick.* \.toml file. Mask patterns: full, "),
        ("causal", {"selection": Selection(patterns=("full",))}, "causal is a mask pattern itself; leave out --mask"),
        (
            "causal",
            {"selection": Selection(strategies=("usp",))},
            "^--strategy: strategies need several ranks; give --gpus",
        ),
        ("full", {"lengths": "pile"}, "full draws no documents from --lengths; leave it out"),
        ("causal_document", {"lengths": "pile", "documents": "64"}, "--documents gives the documents, and --lengths"),
        (
            "causal_document",
            {"documents": "64", "selection": Selection(seqlens=(65,))},
            "--documents sum to 64 tokens, and --seqlen is 65; leave out --seqlen",
        ),
    ],
)
def test_what_is_refused(subject, options, said):
    with pytest.raises(RequestError, match=said):
        choose(subject, **options)
