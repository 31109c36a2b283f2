"""The options of a mask, shared by several commands, and the mask that they make."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from longca.masks import Mask

__all__ = [
    "PANEL",
    "SEQLEN",
    "Block",
    "Boundaries",
    "Documents",
    "GlobalTokens",
    "Kept",
    "LengthsFrom",
    "MaskHeads",
    "Prefix",
    "Seed",
    "Seqlen",
    "SeqlenK",
    "Window",
    "check_lengths",
    "make_mask",
    "mask_factors",
    "say_lengths",
    "total_tokens",
]

#: Tokens of a mask if no option gives its length.
SEQLEN = 4096

#: The heading of these options in the help.
PANEL = "One mask"


def _factor(flag: str, help: str, metavar: str | None = None) -> Any:
    """An option of the mask's panel."""
    return typer.Option(flag, help=help, metavar=metavar, rich_help_panel=PANEL)


Seqlen = Annotated[
    int | None,
    typer.Option(
        "--seqlen",
        help="Number of queries, and of keys without --seqlen-k. "
        f"(default: the sum of --documents, the last of --boundaries, or {SEQLEN})",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the drawn factors.")]
SeqlenK = Annotated[int | None, _factor("--seqlen-k", "Number of keys, for patterns that allow Sq ≠ Sk.")]
LengthsFrom = Annotated[
    str | None,
    _factor(
        "--lengths",
        "Draw document lengths from pile, prolong64k, prolong512k, mix or a file. (default: by the length)",
        "NAME|FILE",
    ),
]
Documents = Annotated[
    str | None,
    _factor(
        "--documents",
        "Exactly these document lengths: 1000,96,3000, or a file with one length a line.",
        "LENGTHS|FILE",
    ),
]
Window = Annotated[int | None, _factor("--window", "Distance that a query sees, in tokens.")]
Prefix = Annotated[int | None, _factor("--prefix", "Tokens of the prefix.")]
Block = Annotated[int | None, _factor("--block", "Tokens of a block.")]
GlobalTokens = Annotated[
    int | None, _factor("--global-tokens", "Number of first tokens that see all tokens and are seen by all.")
]
Boundaries = Annotated[str | None, _factor("--boundaries", "Block bounds from 0 to the length: 0,100,4096.", "N,N,...")]
Kept = Annotated[float | None, _factor("--kept", "Share of the blocks that is kept, from 0 to 1.")]
MaskHeads = Annotated[
    int | None,
    _factor("--mask-heads", "Heads with masks of their own, for block-sparse patterns. (default: one a KV head)"),
]


def mask_factors(
    *,
    documents: str | None = None,
    window: int | None = None,
    prefix: int | None = None,
    block: int | None = None,
    global_tokens: int | None = None,
    boundaries: str | None = None,
    kept: float | None = None,
) -> dict[str, Any]:
    """The mask factors that a command was given, by name. Factors that were not given are left out.

    Args:
        documents: Lengths separated by commas, or the path of a file of lengths. A text of digits, commas, signs and
            spaces is a list. Any other text is a path.
        window: Distance that a query sees.
        prefix: Tokens of the prefix.
        block: Tokens of a block.
        global_tokens: Number of first tokens that see all tokens and are seen by all.
        boundaries: Block bounds separated by commas.
        kept: Share of blocks kept.

    Raises:
        RequestError: A list that is not whole numbers separated by commas, or a file that is missing or has an invalid
            line.
    """
    given = {
        "documents": None if documents is None else _documents(documents),
        "window": window,
        "prefix": prefix,
        "block": block,
        "global_tokens": global_tokens,
        "boundaries": None if boundaries is None else _integers("boundaries", boundaries, "0,100,4096"),
        "kept": kept,
    }
    return {name: value for name, value in given.items() if value is not None}


def total_tokens(seqlen: int | None, factors: Mapping[str, Any]) -> int:
    """The length of a mask: the given length, the sum of its documents, the end of its boundaries, or SEQLEN.

    Raises:
        RequestError: The documents sum to another length than the given one.
    """
    if "documents" in factors:
        total = sum(factors["documents"])
        if seqlen not in (None, total):
            from longca.errors import RequestError

            raise RequestError(
                f"--documents sum to {total} tokens, and --seqlen is {seqlen}; leave out --seqlen, or make the lengths "
                "sum to it"
            )
        return total
    if seqlen is not None:
        return seqlen
    return int(factors["boundaries"][-1]) if "boundaries" in factors else SEQLEN


def make_mask(
    pattern: str,
    *,
    seqlen: int | None,
    seqlen_k: int | None = None,
    lengths: str | None = None,
    seed: int = 0,
    heads: int | None = None,
    factors: Mapping[str, Any],
) -> Mask:
    """The mask of a command. Factors that were not given are drawn as LongCA-bench draws them.

    A file of lengths is described on standard error.

    Args:
        pattern: Name of the pattern.
        seqlen: Queries, or None for `total_tokens`.
        seqlen_k: Keys, or None for the number of queries. With a number, no factor is drawn and the window is 1024.
        lengths: The source of document lengths, or None for the paper's choice for the length.
        seed: Seed of the drawn factors.
        heads: Heads with masks of their own. None means one head, and is the value for patterns whose heads are all
            alike.
        factors: The result of `mask_factors`.

    Raises:
        UnknownNameError: The pattern or the distribution of lengths is unknown.
        RequestError: Lengths that contradict each other, or a file of lengths that cannot be read.
        MaskError: A length or a factor that does not fit the pattern.
    """
    from longca.masks import build, get_pattern, sample

    kind = get_pattern(pattern)
    check_lengths(pattern, lengths, factors)
    tokens = total_tokens(seqlen, factors)
    given = dict(factors) if heads is None else {**factors, "heads": heads}
    if seqlen_k is None:
        if lengths is not None:
            say_lengths(lengths)
        return sample(pattern, tokens, lengths=lengths, seed=seed, **given)
    if "window" in kind.factors:
        given.setdefault("window", 1024)
    return build(pattern, tokens, seqlen_k=seqlen_k, **given)


def check_lengths(pattern: str, lengths: str | None, factors: Mapping[str, Any]) -> None:
    """Refuses --lengths if no document is drawn from them.

    Raises:
        UnknownNameError: The pattern is unknown.
        RequestError: The documents are given, or the pattern draws none.
    """
    from longca.errors import RequestError
    from longca.masks.sampling import draws_lengths

    if lengths is None:
        return
    if "documents" in factors:
        raise RequestError("--documents gives the documents, and --lengths draws them; leave out one of them")
    if not draws_lengths(pattern):
        raise RequestError(f"{pattern} draws no documents from --lengths; leave it out, or take another pattern")


@cache
def say_lengths(lengths: str) -> None:
    """Says on standard error, once a command, how many lengths a file has and that documents are drawn from it.

    Args:
        lengths: The value of --lengths. A named distribution prints nothing.

    Raises:
        RequestError: The file is missing, or is no file of lengths.
    """
    from longca.masks.lengths import describe_file, length_file
    from longca_bench.reports.text import printable

    file = length_file(lengths)
    if file is None:
        return
    exact = f". --documents {file} takes exactly these" if file.suffix.lower() == ".txt" else ""
    typer.echo(printable(f"{describe_file(file)}; documents are drawn from it at random{exact}"), err=True)


def _documents(text: str) -> list[int]:
    """The lengths in a list, or in a file."""
    from longca.errors import RequestError

    if re.fullmatch(r"[\d\s,+-]*", text, re.ASCII):
        lengths = _integers("documents", text, "1000,96,3000")
        for place, length in enumerate(lengths, 1):
            if length < 1:
                raise RequestError(f"--documents: length {place} is {length}; every document has at least 1 token")
        return lengths
    if not Path(text).exists():
        raise RequestError(
            f"--documents is {text!r}, and there is no such file; give lengths separated by commas, such as "
            "1000,96,3000, or the path of a file with one length a line"
        )
    from longca.masks.length_files import read_lengths

    return read_lengths(text).tolist()


def _integers(name: str, text: str, example: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        from longca.errors import RequestError

        raise RequestError(f"--{name} is {text!r}; give integers separated by commas, such as {example}") from None
