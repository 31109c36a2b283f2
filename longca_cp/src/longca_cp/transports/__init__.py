"""Transports: how tensors move between the ranks of an axis, by collectives or by copies into a peer's memory."""
