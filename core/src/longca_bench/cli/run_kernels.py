"""The kernels of a run: those of --kernel, --ab, --recommended, --pairs and --function."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from longca.errors import RequestError

__all__ = ["ChosenKernels"]


@dataclass(frozen=True)
class ChosenKernels:
    """The options of `longca run` that choose kernels.

    Attributes:
        named: The kernels of --kernel. Empty for all kernels.
        ab: Two kernels that take turns.
        recommended: Number of recommended choices to measure.
        pairs: Whether pairs of the kernels are measured too.
        unverified: Whether offers run that nobody verified on the device.
    """

    named: tuple[str, ...]
    ab: tuple[str, str] | None
    recommended: int | None
    pairs: bool
    unverified: bool

    def names(self, function: tuple[str, str] | None, *, alone: bool) -> tuple[str, ...]:
        """The kernels to measure. Empty for all kernels.

        Args:
            function: The text and the shape of --function, which becomes a kernel of this run.
            alone: Whether the run is without ranks.

        Raises:
            RequestError: The options contradict each other, or there is no such function.
        """
        self._check()
        names = self.ab or self.named
        if function is None:
            return names
        if self.recommended is not None:
            raise RequestError(
                "--recommended chooses among the kernels of plugins; leave out --function, or name the kernels to "
                "measure beside it with --kernel"
            )
        mine = _install(*function, alone=alone)
        return tuple(dict.fromkeys((*names, mine))) if self.named else names

    def _check(self) -> None:
        chooses = "--recommended chooses" if self.recommended is not None else "--ab names"
        if self.recommended is not None and self.ab is not None:
            raise RequestError("--recommended chooses the kernels, and --ab names them; leave out one of them")
        if self.recommended is not None and self.unverified:
            raise RequestError("--recommended chooses among verified kernels; leave out --unverified")
        if self.pairs and (self.recommended is not None or self.ab is not None):
            raise RequestError(f"{chooses} the kernels, and --pairs adds pairs to them; leave out one of them")
        if self.ab is not None and self.named:
            raise RequestError("--ab names the kernels; leave out --kernel, or --ab")
        if self.ab is not None and self.ab[0] == self.ab[1]:
            raise RequestError(f"--ab {' '.join(self.ab)} compares a kernel with itself; name two kernels")


def _install(text: str, shape: str, *, alone: bool) -> str:
    """Makes a function a kernel of this run, and returns the kernel's name."""
    if not alone:
        raise RequestError("--function is measured on one device; leave out --nproc and --strategy, or verify it there")
    from longca_bench.functions.function_plugin import install

    name = install(text, shape)
    typer.echo(f"{text} is the kernel {name}", err=True)
    return name
