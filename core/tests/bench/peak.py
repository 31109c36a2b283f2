"""Peak: the most memory of tensors that lived together."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Peak(TorchDispatchMode):
    """Counts the bytes of living tensors that were made in it."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self._living = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for x in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(x, torch.Tensor) and (memory := x.untyped_storage())._cdata not in self._living:
                self._living[memory._cdata] = memory.nbytes()
                self.now += memory.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(memory, self._gone, memory._cdata)
        return made

    def _gone(self, key):
        self.now -= self._living.pop(key)
