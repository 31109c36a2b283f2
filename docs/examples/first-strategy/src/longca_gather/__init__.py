"""The manifest and the hook. Every listing of strategies imports this module, so it does not import torch."""

from longca import StrategyManifest, hookimpl


@hookimpl
def provide_cp_strategy() -> StrategyManifest:
    """The manifest of gather_all."""
    return StrategyManifest(
        name="gather_all",
        title="Gather all",
        upstream="https://example.org/gather-all",
        license="Apache-2.0",
        axes=("ring",),
        placements=("contiguous",),
        layout="longca_gather.layout:layout",
        implementation="longca_gather.strategy:GatherAll",
    )
