"""Changes of inputs whose effect on every result is known exactly.

Heads of attention do not depend on each other, so heads that share a mask may change places. A sign that q and k of a
head share does not change its scores. A factor of v is a factor of out, dq and dk, and a factor of dout is one of dq,
dk and dv. Factors are signs, and powers of two where the dtype's range is wide, so no rounding differs.

A kernel that returns an earlier answer is wrong by content after a change, whatever it compares to find that answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random, SystemRandom

import torch
from torch import Tensor

from longca.manifests import Problem
from longca_bench.verification.inputs import Inputs

__all__ = ["Change"]

_OF_KEYS = ("k", "v", "dk", "dv")
#: A float16 overflows at 65504, which gradients of keys that many queries see can reach.
_SIGNS = (-1.0, 1.0)
_WIDE = (-2.0, -1.0, 1.0, 2.0)


@dataclass(frozen=True)
class Change:
    """A change of a problem's inputs. Lists are by the changed head.

    `order_q` and `order_kv` have the head that each head was. By KV head, `sign` is a factor of q and k, `of_v` one of
    v, and `of_dout` one of dout.
    """

    order_q: tuple[int, ...]
    order_kv: tuple[int, ...]
    sign: tuple[float, ...]
    of_v: tuple[float, ...]
    of_dout: tuple[float, ...]

    @classmethod
    def none(cls, problem: Problem) -> Change:
        """The change that changes nothing."""
        heads_q, heads_kv = problem.heads_q, problem.num_heads_kv
        ones = (1.0,) * heads_kv
        return cls(tuple(range(heads_q)), tuple(range(heads_kv)), ones, ones, ones)

    @classmethod
    def first(cls, problem: Problem) -> Change:
        """The first change of a case. It is drawn after the plan, so no plan knows the inputs of a call."""
        return cls.draw(problem, cls.none(problem))

    @classmethod
    def draw(cls, problem: Problem, last: Change, random: Random = SystemRandom()) -> Change:
        """A change that differs from the last one in every head of out, dq, dk and dv.

        Heads with masks of their own keep their places. The system's random numbers cannot be predicted.
        """
        heads_q, heads_kv = problem.heads_q, problem.num_heads_kv
        group, masks = heads_q // heads_kv, problem.concrete_mask.heads
        order_kv = list(range(heads_kv))
        if masks == 1:
            random.shuffle(order_kv)
        order_q = []
        for head in order_kv:
            own = list(range(head * group, (head + 1) * group))
            if masks <= heads_kv:
                random.shuffle(own)
            order_q += own
        factors = _SIGNS if problem.dtype == "float16" else _WIDE
        of_v, of_dout = (
            tuple(random.choice([factor for factor in factors if factor != was]) for was in each)
            for each in (last.of_v, last.of_dout)
        )
        products = zip(of_v, of_dout, last._slopes(), strict=True)
        sign = (random.choice([sign for sign in _SIGNS if sign * f * g != was]) for f, g, was in products)
        return cls(tuple(order_q), tuple(order_kv), tuple(sign), of_v, of_dout)

    def apply(self, given: Inputs, changed: Inputs, *, with_dout: bool = True) -> None:
        """Writes the changed inputs of those that were drawn. A forward does not read dout."""
        for name in ("q", "k", "v", "dout") if with_dout else ("q", "k", "v"):
            self.write(name, getattr(given, name), getattr(changed, name))

    def write(self, name: str, given: Tensor, changed: Tensor) -> None:
        """Writes one changed tensor, by its name: an input or a result."""
        dim, (order, factors) = int(name != "lse"), self._of(name)
        torch.index_select(given, dim, _index(order, given), out=changed)
        if any(factor != 1.0 for factor in factors):
            changed.mul_(_column(factors, changed))

    def made(self, name: str, given: Tensor) -> Tensor:
        """A changed tensor, by its name: an input or a result."""
        changed = torch.empty_like(given, memory_format=torch.contiguous_format)
        self.write(name, given, changed)
        return changed

    def made_all(self, given: Inputs) -> Inputs:
        """All changed inputs."""
        return Inputs(*(self.made(name, getattr(given, name)) for name in ("q", "k", "v", "dout")))

    def undo(self, name: str, changed: Tensor) -> Tensor:
        """The result for the inputs as they were drawn, of a result [T, H, D], or lse [Hq, T], for changed ones."""
        order, factors = self._of(name)
        places = sorted(range(len(order)), key=order.__getitem__)
        there = changed.index_select(int(name != "lse"), _index(places, changed))
        return there if name == "lse" else there.mul_(_column([1 / factors[place] for place in places], there))

    def place(self, name: str, head: int) -> int:
        """The place that a head of the drawn inputs has in a result. `counts` are of lse."""
        order, _ = self._of("lse" if name == "counts" else name)
        return order.index(head)

    def _of(self, name: str) -> tuple[Sequence[int], list[float]]:
        """The order and the factors of a tensor's heads."""
        by_key = {
            "q": self.sign,
            "k": self.sign,
            "v": self.of_v,
            "dout": self.of_dout,
            "out": self.of_v,
            "lse": (1.0,) * len(self.order_kv),
            "dq": self._slopes(),
            "dk": self._slopes(),
            "dv": self.of_dout,
            "dsinks": [f * g for f, g in zip(self.of_v, self.of_dout, strict=True)],
        }[name]
        if name in _OF_KEYS:
            return self.order_kv, list(by_key)
        group = len(self.order_q) // len(self.order_kv)
        return self.order_q, [factor for factor in by_key for _ in range(group)]

    def _slopes(self) -> list[float]:
        """The factor of dq and dk, by KV head."""
        return [s * f * g for s, f, g in zip(self.sign, self.of_v, self.of_dout, strict=True)]


def _index(order: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(order, device=like.device)


def _column(factors: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(factors, dtype=like.dtype, device=like.device)[:, None]
