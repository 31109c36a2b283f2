"""Known mistakes of attention functions. A mistake is found by computing what it gives, and comparing.

Each mistake has guesses: what a function with this mistake returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum

from longca.errors import MaskError
from longca_bench.functions import guesses, mask_guesses, rank_guesses
from longca_bench.functions.guesses import Guess, Results
from longca_bench.functions.oracle import Asked, right
from longca_bench.verification.findings import check_values

__all__ = ["MOST_TOKENS", "Mistake", "explain"]

#: Tokens of the longest mask on which mistakes are looked for. Their masks are made dense.
MOST_TOKENS = 4096


class Mistake(StrEnum):
    """A known mistake. Of several that explain as many masks, the first counts.

    Attributes:
        says: The mistake in one sentence, without the full stop.
        guess: What a function with this mistake returns, for a call.
    """

    says: str
    guess: Callable[[Asked], Iterator[Guess]]

    def __new__(cls, name: str, says: str, guess: Callable[[Asked], Iterator[Guess]]) -> Mistake:
        """A member, which is its name."""
        member = str.__new__(cls, name)
        member._value_, member.says, member.guess = name, says, guess
        return member

    STRIDES = "strides", "Strided inputs are misread: contiguous ones give right results", guesses.nothing
    BATCH = "batch", "The sequences of a batch are mixed: only some have right results", guesses.nothing
    KEPT_MASK = (
        "kept_mask",
        "The mask of an earlier call is kept: another mask of the same lengths gives wrong results",
        guesses.nothing,
    )
    RANGE = (
        "range",
        "Large scores give wrong results: subtract a row's maximum before exp, also where parts are merged, and keep "
        "products of q and k out of float16",
        guesses.nothing,
    )
    GROUP = (
        "group",
        "A group of half of the ranks gives wrong results: take ranks and sizes from the group, as "
        "dist.get_rank(group) does",
        guesses.nothing,
    )
    EMPTY_ROWS = "empty_rows", "Queries that see no key are wrong: their output is 0 by definition", guesses.empty_rows
    POSITIONS = (
        "positions",
        "Rotary positions are not sharded: each rank counts its tokens from 0",
        rank_guesses.local_turns,
    )
    ROTARY = "rotary", "Rotary positions are not applied as asked", guesses.no_turns
    NOT_REDUCED = (
        "not_reduced",
        "Gradients of keys and values are not reduced: each rank holds only its own queries' part",
        rank_guesses.not_reduced,
    )
    AVERAGED = (
        "averaged",
        "Gradients are reduced with a wrong factor: the ranks' parts are summed once",
        rank_guesses.averaged,
    )
    OWN_KEYS = (
        "own_keys",
        "Ranks do not exchange keys: each rank's queries see its own keys alone",
        rank_guesses.own_keys,
    )
    LOCAL_MASK = (
        "local_mask",
        "The mask is not sharded: each rank takes the mask of the first queries",
        rank_guesses.local_mask,
    )
    DOCUMENTS = "documents", "Documents are not separated: queries see keys of other documents", mask_guesses.documents
    WINDOW = "window", "The window is off by one", mask_guesses.window
    NO_WINDOW = "no_window", "The window is ignored", mask_guesses.no_window
    ALIGNMENT = (
        "alignment",
        "The causal diagonal starts in the top left corner: LongCA aligns the last query with the last key",
        mask_guesses.alignment,
    )
    DIAGONAL = "diagonal", "The causal diagonal is off by one", mask_guesses.diagonal
    TRANSPOSED = "transposed", "The mask is transposed: keys see queries", mask_guesses.transposed
    IGNORED = "ignored", "The mask is ignored", mask_guesses.ignored
    SWAPPED = "swapped", "Heads and tokens are taken for each other: --shape says which dim is which", guesses.swapped
    SCALE = "scale", "The softmax scale is wrong", guesses.scale
    HEADS = "heads", "Query heads read wrong KV heads: a KV head serves neighbouring query heads", guesses.heads
    PRECISION = "precision", "The precision is lower than that of the inputs", guesses.precision


def explain(asked: Asked, results: Results) -> dict[Mistake, str]:
    """The mistakes that give these results, each with details. Empty if none does.

    All results must be those of the mistake, or else the output alone if it is wrong.

    Args:
        asked: The call.
        results: The function's results, at least one of which is wrong.
    """
    if max(asked.problem.concrete_mask.seqlen_q, asked.problem.concrete_mask.seqlen_k) > MOST_TOKENS:
        return {}
    found: dict[Mistake, str] = {}
    out = {} if check_values({"out": results["out"]}, right(asked)).passed else {"out": results["out"]}
    forward: dict[Mistake, str] = {}
    for mistake in Mistake:
        try:
            for detail, matches in mistake.guess(asked):
                if matches(results):
                    found.setdefault(mistake, detail)
                elif out and matches(out):
                    forward.setdefault(mistake, detail)
        except MaskError:  # the mask of this mistake has too many slices
            continue
    return found or forward
