"""Document lengths: the sums, the distributions, the reproducibility promise and the specs."""

import json
from pathlib import Path

import numpy as np
import pytest

from longca.errors import RequestError, UnknownNameError
from longca.masks import lengths

DISTRIBUTIONS = [
    *map(lengths.named, lengths.NAMES),
    lengths.mix(lengths.named("pile")),
    lengths.from_bins("h", (1, 3, 100, 5000), (1.0, 0.0, 2.5)),
    lengths.from_list("l", np.array([7, 1, 900])),
]


@pytest.fixture(params=DISTRIBUTIONS, ids=lambda d: d.name)
def distribution(request: pytest.FixtureRequest) -> lengths.LengthDistribution:
    return request.param


@pytest.mark.parametrize("total", [1, 2, 1000, 1 << 20])
def test_lengths_sum_to_the_total(distribution: lengths.LengthDistribution, total: int) -> None:
    drawn = distribution.sample(total, seed=3)
    assert drawn.dtype == np.int64
    assert drawn.sum() == total
    assert drawn.min() >= 1


@pytest.mark.parametrize("share", [1e-9, 0.01, 0.25, 1.0])
def test_max_share_caps_every_document(distribution: lengths.LengthDistribution, share: float) -> None:
    drawn = distribution.sample(10_000, seed=1, max_share=share)
    assert drawn.sum() == 10_000
    assert 1 <= drawn.max() <= max(1, int(share * 10_000))


def test_seed_gives_the_pinned_lengths() -> None:
    # These numbers fix every recorded mask. Changing them is a change of format.
    pile = lengths.named("pile")
    assert pile.sample(4096, seed=0).tolist() == [376, 144, 26, 7, 834, 1991, 338, 380]
    mixed = lengths.mix(lengths.named("prolong64k")).sample(65536, seed=0).tolist()
    assert mixed[:8] == [516, 311, 6, 12138, 426, 597, 505, 1128]
    histogram = lengths.from_bins("h", (1, 3, 100, 5000), (1.0, 0.0, 2.5))
    assert histogram.sample(9000, seed=0)[:6].tolist() == [2509, 2, 1, 1, 3719, 2768]
    listed = lengths.from_list("l", np.array([7, 1, 900]))
    assert listed.sample(3000, seed=0).tolist() == [1, 7, 7, 7, 900, 900, 1, 900, 1, 276]


def test_a_generator_advances_by_one_number_a_document() -> None:
    rng, other = (np.random.Generator(np.random.PCG64(2)) for _ in range(2))
    other.random(len(lengths.named("pile").sample(30_000, rng, 0.2)))
    assert rng.random() == other.random()


@pytest.mark.parametrize("total", [1, 2, 1000, 65536, 1 << 20])
def test_mix_gives_its_share_to_long_documents(total: int) -> None:
    # Short documents of 1 token tell the two kinds apart.
    drawn = lengths.mix(lengths.from_list("ones", np.array([1]))).sample(total, seed=0)
    assert drawn.sum() == total
    short = int(0.4 * total)
    long = drawn[drawn > 1]
    assert abs(int((drawn == 1).sum()) - short) <= 1
    # Every document but the one that was cut.
    assert np.sort(long)[1:].min(initial=8192) >= 8 * 1024
    assert long.max(initial=0) <= 30 * 1024


@pytest.mark.parametrize(
    ("seqlen", "name"),
    [(1, "pile"), (12288, "pile"), (12289, "prolong64k"), (65536, "prolong64k"), (65537, "prolong512k")],
)
def test_the_total_chooses_the_corpus(seqlen: int, name: str) -> None:
    assert lengths.for_seqlen(seqlen).name == name
    assert lengths.resolve_lengths(None, seqlen).name == name
    assert lengths.resolve_lengths("auto", seqlen).name == name
    assert lengths.resolve_lengths("mix", seqlen).name == f"mix:{name}"


def test_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("lower,upper,weight\n4,5,1\n")
    (tmp_path / "a.JSON").write_text(json.dumps([[4, 5, 1]]))
    (tmp_path / "a.txt").write_text("4\n\n4\n")
    for name in ("a.csv", "a.JSON", "a.txt"):
        for spec in (tmp_path / name, str(tmp_path / name)):
            resolved = lengths.resolve_lengths(spec, 64)
            assert resolved.name == name
            assert resolved.sample(10, 0).tolist() == [4, 4, 2]
    monkeypatch.chdir(tmp_path)
    assert lengths.resolve_lengths("a.csv", 64).name == "a.csv"
    assert lengths.resolve_lengths("mix:./a.csv", 64).name == "mix:a.csv"
    assert lengths.resolve_lengths("mix:pile", 1 << 20).name == "mix:pile"
    own = lengths.named("pile")
    assert lengths.resolve_lengths(own, 1 << 20) is own


@pytest.mark.parametrize("spec", ["piles", "mix:piles", "PROLONG64K", ""])
def test_unknown_names_are_refused(spec: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown length distribution"):
        lengths.resolve_lengths(spec, 64)


@pytest.mark.parametrize("spec", ["nowhere.csv", "./pile", "mix:nowhere.txt", Path("pile"), "."])
def test_paths_that_are_not_files_are_refused(spec: str | Path) -> None:
    with pytest.raises(RequestError, match="no file of document lengths at"):
        lengths.resolve_lengths(spec, 64)
