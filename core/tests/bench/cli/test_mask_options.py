"""The options that describe a mask: what they are read as, what is refused, and what mask they make."""

import pytest

from longca import masks
from longca.errors import MaskError, RequestError, UnknownNameError
from longca_bench.cli.mask_options import SEQLEN, MaskOptions, say_lengths


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes a file into the working folder."""
    monkeypatch.chdir(tmp_path)
    return lambda name, text: (tmp_path / name).write_text(text, "utf-8")


def test_only_what_is_given_is_a_factor():
    assert MaskOptions().factors() == {}
    assert MaskOptions(window=0, kept=0.5, boundaries="0, 10,64").factors() == {
        "window": 0,
        "boundaries": [0, 10, 64],
        "kept": 0.5,
    }


@pytest.mark.parametrize("text", ["1000,96,3000", " 1000, 96,3000", "own.txt", "./lengths"])
def test_documents_are_a_list_or_a_file_in_its_order(text, file):
    for name in ("own.txt", "lengths"):
        file(name, "1000\n\n96\n3000\n")
    assert MaskOptions(documents=text).factors() == {"documents": [1000, 96, 3000]}


def test_digits_are_a_list_even_where_a_file_is_named_so(file):
    file("96", "12\n")
    assert MaskOptions(documents="96").factors() == {"documents": [96]}
    assert MaskOptions(documents="./96").factors() == {"documents": [12]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("10,0", "length 2 is 0; every document has at least 1 token"),
        ("10,,5", "'10,,5'; give integers separated by commas, such as 1000,96,3000"),
        ("", "''; give integers separated by commas"),
        ("10,five", "'10,five', and there is no such file; give lengths separated by commas"),
        ("no.txt", "'no.txt', and there is no such file"),
        ("words.txt", "words.txt, line 2: 'and' is not a document length"),
        ("zero.txt", "zero.txt, line 3: 0 is not a document length; write whole numbers from 1 to 2147483647"),
        ("negative.txt", "negative.txt, line 1: -7 is not a document length"),
        ("empty.txt", "empty.txt holds no lengths; write whole numbers"),
        (".", r"\. cannot be read: Is a directory"),
    ],
)
def test_documents_that_are_refused(text, said, file):
    file("words.txt", "12\nand text\n")
    file("zero.txt", "12\n\n0\n")
    file("negative.txt", "-7\n")
    file("empty.txt", "\n")
    with pytest.raises(RequestError, match=said):
        MaskOptions(documents=text).factors()


def test_the_length_is_what_is_asked_or_what_the_factors_say():
    assert MaskOptions().tokens() == SEQLEN
    assert MaskOptions(seqlen=64, window=8).tokens() == 64
    assert MaskOptions(documents="40,24").tokens() == MaskOptions(documents="40,24").tokens(64) == 64
    assert MaskOptions(boundaries="0,10,80").tokens() == 80
    with pytest.raises(RequestError, match="--documents sum to 64 tokens, and --seqlen is 65; leave out --seqlen"):
        MaskOptions(seqlen=65, documents="40,24").tokens()


def test_masks_are_built_of_what_is_given_and_drawn_of_the_rest():
    given = masks.build("causal_document", 64, documents=[40, 24])
    assert MaskOptions(documents="40,24").mask("causal_document") == given
    drawn = masks.sample("causal_document", 512, lengths="pile", seed=3)
    assert MaskOptions(seqlen=512, lengths="pile", seed=3).mask("causal_document") == drawn
    assert MaskOptions(seqlen=512, block=64).mask("uniform_block_sparse", 2).heads == 2
    short = MaskOptions(seqlen=64, seqlen_k=4096).mask("causal_sliding_window")
    assert (short.seqlen_q, short.seqlen_k, short.factors["window"]) == (64, 4096, 1024)


def test_masks_that_are_refused():
    with pytest.raises(UnknownNameError, match="unknown mask pattern 'casual'"):
        MaskOptions(seqlen=64).mask("casual")
    with pytest.raises(MaskError, match="causal takes no factor 'documents'"):
        MaskOptions(documents="64").mask("causal")
    with pytest.raises(RequestError, match="--documents gives the documents, and --lengths draws them; leave out"):
        MaskOptions(lengths="pile", documents="64").mask("causal_document")


@pytest.mark.parametrize("pattern", ["full", "causal_sliding_window", "uniform_block_sparse", "block_causal_document"])
def test_lengths_of_which_nothing_is_drawn_are_refused(pattern):
    MaskOptions().check_lengths(pattern)
    MaskOptions(lengths="pile").check_lengths("causal_document")
    with pytest.raises(RequestError, match=f"{pattern} draws no documents from --lengths; leave it out"):
        MaskOptions(lengths="pile").check_lengths(pattern)


def test_a_file_of_lengths_is_named_once_and_said_to_be_drawn_from(file, capsys):
    say_lengths.cache_clear()
    file("own.txt", "12\n" * 1204)
    file("own.csv", "lower,upper,weight\n1,10,1\n10,20,1\n")
    for _ in range(2):
        MaskOptions(seqlen=64, lengths="own.txt").mask("causal_document")
    MaskOptions(seqlen=64, lengths="mix:own.csv").mask("causal_document")
    MaskOptions(seqlen=64, lengths="mix:pile").mask("causal_document")
    assert capsys.readouterr() == (
        "",
        "own.txt: 1,204 lengths, numbers in text; documents are drawn from it at random. "
        "--documents own.txt takes exactly these\n"
        "own.csv: a histogram of 2 bins; documents are drawn from it at random\n",
    )
