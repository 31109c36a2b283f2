"""The options of `longca run` for a job of Slurm."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from longca_bench.cli.options import takes_options

__all__ = ["ClusterOptions", "takes_cluster"]


def _option(flag: str, help: str, metavar: str | None = None, **about: Any) -> Any:
    """An option of the clusters' panel."""
    return typer.Option(flag, help=help, metavar=metavar, rich_help_panel="Slurm", **about)


@dataclass(frozen=True)
class ClusterOptions:
    """The options of a job, as the command line gives them. `takes_cluster` adds them to a command."""

    slurm: Annotated[bool, _option("--slurm", "Submit the run as a job of Slurm, with --nproc ranks on each node.")] = (
        False
    )
    slurm_script: Annotated[bool, _option("--slurm-script", "Print the script of such a job for sbatch, and stop.")] = (
        False
    )
    nodes: Annotated[int | None, _option("--nodes", "Number of nodes. (default: 1)", min=1, max=4096)] = None
    gpu: Annotated[
        str | None,
        _option("--gpu", "GPU of the nodes, such as h200, for the time estimate. (default: this machine's)", "NAME"),
    ] = None
    partition: Annotated[str | None, _option("--partition", "Partition of the job.", "NAME")] = None
    account: Annotated[str | None, _option("--account", "Account of the job.", "NAME")] = None
    time: Annotated[
        str | None,
        _option("--time", "Time limit: minutes, or D-HH:MM:SS. (default: the estimate's upper end and 10 min)", "TIME"),
    ] = None
    sbatch: Annotated[
        list[str] | None, _option("--sbatch", "A further option of sbatch, such as qos=high. Repeatable.", "NAME=VALUE")
    ] = None

    @property
    def chosen(self) -> ClusterOptions | None:
        """The options of a job, or None if no job is requested.

        Raises:
            RequestError: Options of a job without one, or both ways to make one. Or this process is a job's rank.
        """
        from longca.errors import RequestError
        from longca_bench.ranks.job import current_job

        if self.slurm and self.slurm_script:
            raise RequestError("--slurm submits the job, and --slurm-script prints its script; leave out one of them")
        if self.slurm or self.slurm_script:
            if current_job() is not None:
                raise RequestError("--slurm submits a job, and this process is a rank of one; leave out --slurm")
            return self
        if given := [f"--{each.name}" for each in fields(self) if getattr(self, each.name) not in (None, False)]:
            raise RequestError(
                f"{', '.join(given)}: these options are for a job of Slurm; add --slurm or --slurm-script. On several "
                "hosts without Slurm, start torchrun on each of them"
            )
        return None


takes_cluster = takes_options(ClusterOptions, "cluster")
