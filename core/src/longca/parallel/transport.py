"""The transport of a call: what the caller asked for, checked against the strategy, and given to its constructor."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from longca.errors import RequestError
from longca.manifests import StrategyManifest
from longca.manifests.strategy import Transport

__all__ = ["Transport", "constructed", "moved_by", "transport_of"]


def transport_of(asked: Transport | str, manifest: StrategyManifest) -> Transport:
    """The transport that a strategy is constructed with. `auto` is the only transport of a strategy that lists one.

    Raises:
        RequestError: There is no such transport, or the strategy does not list it.
    """
    try:
        transport = Transport(asked)
    except ValueError:
        raise RequestError(f"transport is {asked!r}; give {', '.join(Transport)}") from None
    listed = manifest.transports
    if transport is Transport.AUTO:
        return transport if len(listed) > 1 else listed[0]
    if transport not in listed:
        raise RequestError(
            f"transport={str(transport)!r} was asked for, and {manifest.name} moves tensors by {', '.join(listed)} "
            f"alone; give {' or '.join(listed)}, auto, or another strategy"
        )
    return transport


def constructed(made_by: Any, manifest: StrategyManifest, mesh: DeviceMesh, transport: Transport) -> Any:
    """A strategy on a mesh. The constructor gets the transport if the manifest lists several.

    Args:
        made_by: The strategy's class.
        manifest: Its manifest.
        mesh: The device mesh.
        transport: The transport, as `transport_of` returns it.
    """
    return made_by(mesh, transport=transport) if len(manifest.transports) > 1 else made_by(mesh)


def moved_by(strategy: Any, manifest: StrategyManifest) -> dict[str, Transport]:
    """The transport that moves the tensors of each axis.

    Args:
        strategy: The strategy on a mesh, as `constructed` returns it.
        manifest: Its manifest.
    """
    taken = getattr(strategy, "transports", manifest.transports * len(manifest.axes))
    return dict(zip(manifest.axes, taken, strict=True))
