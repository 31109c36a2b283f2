"""The ranks of a run: their number, and the part of this process among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.errors import RequestError
from longca_bench.cli.options import count_workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from longca.manifests import Device
    from longca_bench.cli.run_request import Request
    from longca_bench.ranks.leader import Leader

__all__ = ["check_ranks", "in_its_place"]


def in_its_place(wanted: Request, lead: Callable[[Leader | None], None]) -> None:
    """Does the part of this process. In a job the first process leads, and the others supervise their ranks."""
    from longca_bench.ranks.job import current_job

    job = current_job()
    if job is not None and job.rank > 0:
        from longca_bench.ranks.member import follow

        follow(job)
        return
    if job is None:
        lead(None)
        return
    from longca_bench.ranks.leader import leading

    with leading(job) as leader:
        lead(leader)


def check_ranks(wanted: Request, where: Device, ranks: int | None) -> None:
    """Refuses options that do not go with ranks."""
    if ranks is None:
        return
    if wanted.ab:
        raise RequestError("--ab lets two kernels take turns on one device; leave it out, or --nproc and torchrun")
    here = count_workers(where)
    if wanted.nproc is not None and where.kind == "cuda" and wanted.nproc > here:
        raise RequestError(f"--nproc {wanted.nproc} needs as many GPUs, and {here} are visible. Take --nproc {here}")
