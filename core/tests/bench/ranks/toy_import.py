"""A strategy whose module changes global state when a worker of rank 1 imports it."""

import torch
from toys import Toy

if torch.distributed.get_rank() == 1:
    torch.set_default_dtype(torch.float64)


class ImportsWithState(Toy):
    """A strategy that is right."""
