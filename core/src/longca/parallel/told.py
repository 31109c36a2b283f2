"""Told: the sentences on ranks that do not agree, made from what each of them has said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["FAILED", "KNOWN", "named", "sentences"]

#: Names under which a rank says that it failed, and that it had begun a known call.
FAILED, KNOWN = "failed", "known"
#: Ranks that a message names.
_MOST_RANKS = 8

#: The words of each rank.
_Told = Mapping[int, Mapping[str, str]]


def sentences(told: _Told) -> str:
    """What differs, on which ranks, and what to do.

    Args:
        told: Names of things and their values, as each rank said them.
    """
    known = [rank for rank, said in told.items() if KNOWN in said]
    others = {rank: said for rank, said in told.items() if rank not in known}
    failed = {rank: said[FAILED] for rank, said in others.items() if FAILED in said}
    if failed:
        rank, message = next(iter(failed.items()))
        moved = f"{named(known)} had begun the call" if known else "no rank has moved data in this call"
        return f"{named(list(failed))} failed, and {moved}. Rank {rank} raised {message}"
    if known:
        common = set.intersection(*(set(said) for said in told.values()))
        found = _differences(
            {rank: {name: said[name] for name in said if name in common} for rank, said in told.items()}
        )
        return (
            f"{named(known)} made a call that was known there, while {named(list(others))} came with a new one. "
            f"{found or 'Both ask for the same, so the mask, the layout or the mesh was made anew.'} "
            f"The call has begun on {named(known)}, and waits for the others. All ranks of a mesh make the same calls "
            "in the same order, and reuse masks, layouts and meshes alike"
        )
    return (
        "the ranks of a mesh were asked for different things, and no rank has moved data in this call. "
        f"{_differences(told)} Give the same mask, arguments and shapes on all ranks"
    )


def _differences(told: _Told) -> str:
    """A sentence on each thing of which ranks say other values."""
    parts = []
    for name in dict.fromkeys(name for said in told.values() for name in said):
        holders: dict[str, list[int]] = {}
        for rank, said in told.items():
            holders.setdefault(said.get(name, "nothing"), []).append(rank)
        if len(holders) > 1:
            values = (
                f"{named(ranks)} {'have' if len(ranks) > 1 else 'has'} {value}" for value, ranks in holders.items()
            )
            parts.append(f"{name}: {', '.join(values)}.")
    return " ".join(parts)


def named(ranks: Sequence[int]) -> str:
    """Ranks in words, the first ones by their numbers."""
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_MOST_RANKS]))}{more}"
