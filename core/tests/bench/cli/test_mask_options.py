"""The options that describe a mask: what they are read as, what is refused, and what mask they make."""

import pytest

from longca import masks
from longca.errors import MaskError, RequestError, UnknownNameError
from longca_bench.cli.mask_options import SEQLEN, check_lengths, make_mask, mask_factors, say_lengths, total_tokens


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes a file into the working folder."""
    monkeypatch.chdir(tmp_path)
    return lambda name, text: (tmp_path / name).write_text(text, "utf-8")


def test_only_what_is_given_is_a_factor():
    assert mask_factors() == {}
    assert mask_factors(window=0, kept=0.5, boundaries="0, 10,64") == {
        "window": 0,
        "boundaries": [0, 10, 64],
        "kept": 0.5,
    }


@pytest.mark.parametrize("text", ["1000,96,3000", " 1000, 96,3000", "own.txt", "./lengths"])
def test_documents_are_a_list_or_a_file_in_its_order(text, file):
    for name in ("own.txt", "lengths"):
        file(name, "1000\n\n96\n3000\n")
    assert mask_factors(documents=text) == {"documents": [1000, 96, 3000]}


def test_digits_are_a_list_even_where_a_file_is_named_so(file):
    file("96", "12\n")
    assert mask_factors(documents="96") == {"documents": [96]}
    assert mask_factors(documents="./96") == {"documents": [12]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("10,0", "length 2 is 0; every document has at least 1 token"),
        ("-5,10", "length 1 is -5; every"),
        ("10,,5", "'10,,5'; give integers separated by commas, such as 1000,96,3000"),
        ("", "''; give integers separated by commas"),
        ("10,five", "'10,five', and there is no such file; give lengths separated by commas"),
        ("no.txt", "'no.txt', and there is no such file"),
        ("words.txt", "words.txt, line 2: 'and text' is not a document length; .* longca make-lengths"),
        ("zero.txt", "zero.txt, line 3: '0' is not a document length; write one whole number from 1 to 2147483647"),
        ("negative.txt", "negative.txt, line 1: '-7' is not a document length"),
        ("empty.txt", "empty.txt holds no lengths; write one whole number a line"),
        (".", r"\. cannot be read: Is a directory"),
    ],
)
def test_documents_that_are_refused(text, said, file):
    file("words.txt", "12\nand text\n")
    file("zero.txt", "12\n\n0\n")
    file("negative.txt", "-7\n")
    file("empty.txt", "\n")
    with pytest.raises(RequestError, match=said):
        mask_factors(documents=text)


def test_boundaries_that_are_refused():
    with pytest.raises(RequestError, match="--boundaries is '0;5'; give integers separated by commas, such as 0,100"):
        mask_factors(boundaries="0;5")


def test_the_length_is_what_is_asked_or_what_the_factors_say():
    assert total_tokens(None, {}) == SEQLEN
    assert total_tokens(64, {"window": 8}) == 64
    assert total_tokens(None, {"documents": [40, 24]}) == total_tokens(64, {"documents": [40, 24]}) == 64
    assert total_tokens(None, {"boundaries": [0, 10, 80]}) == 80
    with pytest.raises(RequestError, match="--documents sum to 64 tokens, and --seqlen is 65; leave out --seqlen"):
        total_tokens(65, {"documents": [40, 24]})


def test_masks_are_built_of_what_is_given_and_drawn_of_the_rest():
    given = masks.build("causal_document", 64, documents=[40, 24])
    assert make_mask("causal_document", seqlen=None, factors={"documents": [40, 24]}) == given
    drawn = masks.sample("causal_document", 512, lengths="pile", seed=3)
    assert make_mask("causal_document", seqlen=512, lengths="pile", seed=3, factors={}) == drawn
    assert make_mask("uniform_block_sparse", seqlen=512, heads=2, factors={"block": 64}).heads == 2
    short = make_mask("causal_sliding_window", seqlen=64, seqlen_k=4096, factors={})
    assert (short.seqlen_q, short.seqlen_k, short.factors["window"]) == (64, 4096, 1024)


def test_masks_that_are_refused():
    with pytest.raises(UnknownNameError, match="unknown mask pattern 'casual'"):
        make_mask("casual", seqlen=64, factors={})
    with pytest.raises(MaskError, match="causal takes no factor 'documents'"):
        make_mask("causal", seqlen=None, factors={"documents": [64]})
    with pytest.raises(RequestError, match="--documents gives the documents, and --lengths draws them; leave out"):
        make_mask("causal_document", seqlen=None, lengths="pile", factors={"documents": [64]})


@pytest.mark.parametrize("pattern", ["full", "causal_sliding_window", "uniform_block_sparse", "block_causal_document"])
def test_lengths_of_which_nothing_is_drawn_are_refused(pattern):
    check_lengths(pattern, None, {})
    check_lengths("causal_document", "pile", {})
    with pytest.raises(RequestError, match=f"{pattern} draws no documents from --lengths; leave it out"):
        check_lengths(pattern, "pile", {})


def test_a_file_of_lengths_is_named_once_and_said_to_be_drawn_from(file, capsys):
    say_lengths.cache_clear()
    file("own.txt", "12\n" * 1204)
    file("own.csv", "lower,upper,weight\n1,10,1\n10,20,1\n")
    for _ in range(2):
        make_mask("causal_document", seqlen=64, lengths="own.txt", factors={})
    make_mask("causal_document", seqlen=64, lengths="mix:own.csv", factors={})
    make_mask("causal_document", seqlen=64, lengths="mix:pile", factors={})
    assert capsys.readouterr() == (
        "",
        "own.txt: 1,204 lengths, one a line; documents are drawn from it at random. "
        "--documents own.txt takes exactly these\n"
        "own.csv: a histogram of 2 bins; documents are drawn from it at random\n",
    )
