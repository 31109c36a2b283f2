"""The limits of a page, and the sentences about the parts that it leaves out.

A browser opens 10,000 records with all samples in under 3 seconds. Above that the samples go first, then whole
problems. A problem goes with all its kernels, so that no other kernel becomes the fastest.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = ["MOST_RECORDS", "MOST_WITH_SAMPLES", "keeps_samples", "kept", "sentences"]

#: Records up to which a page has samples.
MOST_WITH_SAMPLES = 10_000
#: Records of a page.
MOST_RECORDS = 30_000


def keeps_samples(records: int) -> bool:
    """Whether a page of this many records has their samples."""
    return records <= MOST_WITH_SAMPLES


def kept(problems: Sequence[Hashable], most: int = MOST_RECORDS) -> list[int]:
    """The records to keep: whole problems, in the order of the runs, while they fit.

    Args:
        problems: The problem of each record.
        most: Records of a page.

    Returns:
        Indices of records, ascending.
    """
    if len(problems) <= most:
        return list(range(len(problems)))
    sizes: dict[Hashable, int] = {}
    for problem in problems:
        sizes[problem] = sizes.get(problem, 0) + 1
    chosen, room = set(), most
    for problem, size in sizes.items():
        if size > room:
            break
        chosen.add(problem)
        room -= size
    return [place for place, problem in enumerate(problems) if problem in chosen]


def sentences(records: int, shown: int) -> list[str]:
    """The sentences about the parts that a page leaves out.

    Args:
        records: Records of the runs.
        shown: Records of the page.
    """
    found = []
    if not keeps_samples(records):
        found.append(
            f"The samples of single calls are left out, because the runs have {records:,} records and a page has "
            f"samples for up to {MOST_WITH_SAMPLES:,}. Medians and intervals are of all samples."
        )
    if shown < records:
        found.append(
            f"{records - shown:,} records are left out, because a page has up to {MOST_RECORDS:,}. The problems that "
            "were measured last are left out first, each with all its kernels."
        )
    if found:
        found.append("Report fewer runs at once, or use --format csv, to see every record.")
    return found
