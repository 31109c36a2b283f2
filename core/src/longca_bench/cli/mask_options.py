"""The options of a mask, which several commands take, and the mask that they make."""

from __future__ import annotations

import os.path
import re
import shlex
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.errors import RequestError
from longca.parsing import parse_share, parse_tokens
from longca_bench.cli.options import flag, option

if TYPE_CHECKING:
    from longca.masks import Mask

__all__ = ["PANEL", "SEQLEN", "MaskOptions", "say_lengths"]

#: Tokens of a mask if no option gives its length.
SEQLEN = 4096

#: The heading of these options in the help.
PANEL = "One mask"

#: The options that are factors of a pattern.
_FACTORS = ("documents", "window", "prefix", "block", "global_tokens", "boundaries", "kept")


_option = partial(option, rich_help_panel=PANEL)
_tokens = partial(_option, metavar="N", read=parse_tokens)


@dataclass(frozen=True)
class MaskOptions:
    """The options of a mask, as the command line gives them. They take the place of a parameter `described`.

    `documents` has lengths separated by commas, or the path of a file of lengths. A text of digits, commas, K, M and
    spaces is a list. Any other text is a path.
    """

    seqlen: Annotated[
        int | None,
        option("Queries, and keys without --seqlen-k. (default: the mask's, or 4096)", "N", read=parse_tokens),
    ] = None
    seqlen_k: Annotated[int | None, _tokens("Number of keys, for patterns that allow Sq ≠ Sk.")] = None
    lengths: Annotated[
        str | None, _option("Draw document lengths from pile, prolong64k, prolong512k, mix or a file.", "NAME|FILE")
    ] = None
    seed: Annotated[int | None, option("Seed of factors that are not given, which are drawn. (default: 0)", "N")] = None
    documents: Annotated[
        str | None,
        _option("These document lengths: 1000,96,3000, or a file, such as FILE.parquet:COLUMN.", "LENGTHS|FILE"),
    ] = None
    tree: Annotated[
        str | None, _option("In place of a pattern: parents and lengths of a tree's nodes, as JSON.", "FILE")
    ] = None
    window: Annotated[int | None, _tokens("Distance that a query sees, in tokens.")] = None
    prefix: Annotated[int | None, _tokens("Tokens of the prefix.")] = None
    block: Annotated[int | None, _tokens("Tokens of a block.")] = None
    global_tokens: Annotated[int | None, _tokens("First tokens that see all tokens and are seen by all.")] = None
    boundaries: Annotated[str | None, _option("Block bounds from 0 to the length: 0,100,4096.", "N,N,...")] = None
    kept: Annotated[float | None, _option("Share of the kept blocks: 0.2 or 20%.", "X", read=parse_share)] = None
    mask_heads: Annotated[
        int | None, _option("Heads with masks of their own, for block-sparse patterns. (default: one a KV head)", "N")
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given and no suite takes, by their names."""
        names = ("lengths", *_FACTORS, "tree", "mask_heads")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def named(self, pattern: str | None, noun: str = "pattern such as causal") -> str:
        """The name of the mask: the pattern that a command takes, or the file of --tree in its place."""
        if self.tree is None:
            if pattern is None:
                raise RequestError(f"no mask was given; give a {noun}, or --tree FILE")
            return pattern
        if pattern is not None:
            raise RequestError(f"--tree {self.tree} is a mask, and {pattern} is another one; give one of them")
        if Path(self.tree).suffix.lower() not in (".json", ".jsonl"):
            raise RequestError(f"--tree {self.tree} is neither .json nor .jsonl; rename it")
        return self.tree

    def factors(self) -> dict[str, Any]:
        """The mask's factors that were given, by name."""
        found = {name: value for name, value in self.given.items() if name in _FACTORS}
        if self.documents is not None:
            found["documents"] = _documents(self.documents)
        if self.boundaries is not None:
            found["boundaries"] = _integers("boundaries", self.boundaries, "0,100,4096")
        return found

    def tokens(self, seqlen: int | None = None, pattern: str = "full") -> int:
        """The length of a mask: as given, of its documents, its boundaries or its file, or SEQLEN."""
        seqlen, factors = self.seqlen if seqlen is None else seqlen, self.factors()
        if "documents" in factors:
            total = sum(factors["documents"])
            if seqlen not in (None, total):
                raise RequestError(
                    f"--documents sum to {total} tokens, and --seqlen is {seqlen}; leave out --seqlen, or make the "
                    "lengths sum to it"
                )
            return total
        if seqlen is not None:
            return seqlen
        if "boundaries" in factors:
            return int(factors["boundaries"][-1])
        from longca.masks import get_pattern

        return (get_pattern(pattern).size or (SEQLEN,))[0]

    def check_lengths(self, pattern: str) -> None:
        """Refuses --lengths if no document is drawn from them."""
        from longca.masks.sampling import draws_lengths

        if self.lengths is not None and self.documents is not None:
            raise RequestError("--documents gives the documents, and --lengths draws them; leave out one of them")
        if self.lengths is not None and not draws_lengths(pattern):
            raise RequestError(f"{pattern} draws no documents from --lengths; leave it out, or take another pattern")

    def check_given(self, pattern: str) -> None:
        """Refuses factors that are left out, unless --seed asks to draw them. The message has an example."""
        from longca.masks import get_pattern

        kind, given, tokens = get_pattern(pattern), self.factors(), self.tokens(pattern=pattern)
        given |= {"documents": None} if self.lengths is not None else {}
        missing = [name for name in kind.factors if name in _FACTORS and name not in {**given, **kind.defaults}]
        if self.seed is not None or not missing:
            return
        examples = {name: _example(name, tokens) for name in missing}
        asked = {"seqlen": tokens, "seqlen_k": self.seqlen_k, **self.given, **examples}
        options = (f"{flag(name)} {shlex.quote(str(value))}" for name, value in asked.items() if value is not None)
        raise RequestError(
            f"the answer for {pattern} depends on {' and '.join(map(flag, missing))}. For example: longca recommend "
            f"{shlex.quote(pattern)} {' '.join(options)}. --seed 0 draws what is not given"
        )

    def mask(self, pattern: str, heads: int = 1) -> Mask:
        """The mask of a command for a number of KV heads. Factors that were not given are drawn as by LongCA-bench.

        A file of lengths is described on standard error. With --seqlen-k, no factor is drawn and the window is 1024.
        """
        from longca.limits import check_tokens
        from longca.masks import build, get_pattern, sample

        kind = get_pattern(pattern)
        self.check_lengths(pattern)
        factors, tokens = self.factors(), check_tokens(self.tokens(pattern=pattern))
        if kind.per_head or self.mask_heads is not None:
            factors["heads"] = self.mask_heads or heads
        if self.seqlen_k is None:
            if self.lengths is not None:
                say_lengths(self.lengths)
            return sample(pattern, tokens, lengths=self.lengths, seed=self.seed or 0, **factors)
        chosen = {"window": 1024} if "window" in kind.factors and "window" not in factors else {}
        mask = build(pattern, tokens, seqlen_k=check_tokens(self.seqlen_k, "seqlen_k"), **factors, **chosen)
        mask.origin = "not given: window" if chosen else ""
        return mask


@cache
def say_lengths(lengths: str) -> None:
    """Says on standard error, once a command, how many lengths a file has and that documents are drawn from it."""
    from longca.masks.lengths import describe_file, length_file
    from longca_bench.reports.text import printable

    file = length_file(lengths)
    if file is None:
        return
    exact = f". --documents {file} takes exactly these" if file.suffix.lower() not in (".csv", ".json") else ""
    typer.echo(printable(f"{describe_file(file)}; documents are drawn from it at random{exact}"), err=True)


def _documents(text: str) -> list[int]:
    """The lengths in a list, or in a file."""
    if re.fullmatch(r"[\d\s,+-]*|\s*\d[\d\s.,kKmM]*", text, re.ASCII):
        lengths = _integers("documents", text, "1000,96,3000")
        for place, length in enumerate(lengths, 1):
            if length < 1:
                raise RequestError(f"--documents: length {place} is {length}; every document has at least 1 token")
        return lengths
    from longca.masks.length_files import named_column, read_lengths

    if not os.path.lexists(named_column(text)[0]):
        raise RequestError(
            f"--documents is {text!r}, and there is no such file; give lengths separated by commas, such as "
            "1000,96,3000, or the path of a file of lengths"
        )
    from longca.limits import MAX_DOCUMENTS

    return read_lengths(text, MAX_DOCUMENTS).lengths.tolist()


def _example(name: str, tokens: int) -> str:
    """A value of a factor for a mask of so many tokens, as an option takes it."""
    third = max(1, tokens // 3)
    values = {
        "documents": f"{tokens - third},{third}" if tokens > 1 else "1",
        "boundaries": f"0,{third},{tokens}",
        "kept": "0.2",
        "window": str(min(1024, tokens)),
    }
    return values.get(name, str(min(128, tokens)))


def _integers(name: str, text: str, example: str) -> list[int]:
    try:
        return [parse_tokens(part) for part in text.split(",")]
    except RequestError:
        raise RequestError(f"--{name} is {text!r}; give integers separated by commas, such as {example}") from None
