"""Odd functions and odd texts of them: each is called right, or refused in a sentence that says what to do."""

import functools
import sys

import pytest
import torch

from longca import masks
from longca.errors import LongCAError, RequestError, VerificationError
from longca.testing import check
from longca_bench.functions.calling import read_function
from longca_bench.functions.user_function import UserFunction, check_module, load

from .wrong_functions import right

MASK = masks.build("causal", 32)
CODE = "def f(q, k, v):\n    return q\n"


class Module(torch.nn.Module):
    def forward(self, q, k, v, attn_mask, scale):
        return right(q, k, v, attn_mask, scale)


async def later(q, k, v): ...


def yields(q, k, v):
    yield q


def by_name(*, query, key, value): ...


class UnsaidError(Exception):
    def __str__(self):
        raise ValueError


def raises(error):
    def function(q, k, v, attn_mask):
        raise error

    return function


def writes(q, k, v, attn_mask, scale):
    return right(q.mul_(1.0), k, v, attn_mask, scale)


class Scaled:
    def __init__(self, factor=1.0):
        self.factor = factor

    def attend(self, q, k, v, attn_mask, scale):
        return right(q, k, v, attn_mask, self.factor * scale)

    unscaled = functools.partialmethod(attend, scale=1.0)


class Bound(Module):
    def __init__(self):
        super().__init__()
        self.forward = functools.partial(self.forward, scale=1.0)


def factor_first(factor, q, k, v, attn_mask, scale):
    return right(q, k, v, attn_mask, factor * scale)


def wraps(function):
    return functools.wraps(function)(lambda *tensors, **given: function(*tensors, **given))


UNSCALED = functools.partial(right, scale=1.0)


@pytest.mark.parametrize(
    "function",
    [
        UNSCALED,
        functools.partial(wraps(UNSCALED)),
        wraps(UNSCALED),
        functools.partial(Scaled().attend, scale=1.0),
        Scaled().unscaled,
        functools.partial(factor_first, 1.0, scale=1.0),
        Bound(),
    ],
    ids=["plain", "nested", "wrapped", "bound method", "partial method", "positional", "module"],
)
def test_bound_parameters_keep_their_values(function):
    assert read_function(function, "it").asks == ("attn_mask",)
    with pytest.raises(VerificationError, match="The softmax scale is wrong"):
        check(function, MASK, head_dim=16, direction="forward")
    assert check(function, MASK, head_dim=16, direction="forward", softmax_scale=1.0).passed


def test_parameters_that_partial_leaves_free_are_filled():
    assert read_function(functools.partial(factor_first, 1.0), "it").asks == ("attn_mask", "scale")
    assert check(functools.partial(factor_first, 1.0), MASK, head_dim=16, direction="forward").passed
    hidden = functools.partial(right, attn_mask=torch.ones(32, 32, dtype=torch.bool))
    with pytest.raises(VerificationError, match="wrong on 1 of 1"):
        check(hidden, MASK, head_dim=16, direction="forward")


@pytest.mark.parametrize("make", [Module, lambda: torch.compile(Module(), backend="eager"), lambda: Module().forward])
def test_parameters_of_a_module_are_those_of_its_forward(make):
    assert read_function(make(), "it").asks == ("attn_mask", "scale")
    assert check(make(), MASK, head_dim=16, direction="forward").passed


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (Module, "is a class; give a function of q, k and v, or a module's instance"),
        (Module.forward, "is a method without its object; make the object in the module, and name it"),
        (later, "is a coroutine or a generator; wrap it in a function that returns a tensor"),
        (yields, "is a coroutine or a generator"),
        (by_name, "takes 0 tensors; wrap it, so that the first three parameters are q, k, v"),
        (3, "is of type int; give a function"),
    ],
)
def test_what_is_no_function_is_refused(function, said):
    with pytest.raises(RequestError, match=said):
        read_function(function, "it")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raises(SystemExit(3)), "raised SystemExit: 3. Shown by"),
        (raises(UnsaidError()), "raised UnsaidError: <UnsaidError, whose text cannot be made: ValueError>"),
        (raises(RuntimeError()), "raised RuntimeError. Shown by"),
        (writes, "in-place operation. Let it write to a tensor of its own"),
    ],
)
def test_what_a_function_raises_is_said(function, said):
    with pytest.raises(VerificationError, match=said):
        check(function, MASK, head_dim=16)


def swaps_dims(q, k, v, is_causal):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)


@pytest.mark.parametrize(("pattern", "sees"), [("causal", "each head sees earlier ones"), ("full", "all heads")])
def test_heads_and_tokens_that_change_places_are_named(pattern, sees):
    with pytest.raises(VerificationError, match=f"Heads and tokens are taken for each other.*{sees}"):
        check(swaps_dims, masks.build(pattern, 32), shape="bshd", head_dim=16, direction="forward")
    assert check(swaps_dims, masks.build(pattern, 32), shape="bhsd", head_dim=16).passed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("odd_module", "the function is 'odd_module'; give MODULE:FUNCTION"),
        ("./odd_module:f", "give MODULE:FUNCTION, such as my_module:attention"),
        ("odd_module:a b", "give MODULE:FUNCTION"),
        ("odd_module.py:f", "give its module without .py: odd_module:f"),
        ("absent_module:f", "^there is no module 'absent_module' in"),
        ("torn_module:f", "the import of torn_module raised SyntaxError"),
        ("null_module:f", "source code string cannot contain null bytes"),
        ("class_module:Attention", "Attention is a class; give a function of q, k and v, or a module's instance"),
    ],
)
def test_texts_are_refused_before_a_run_and_by_verify(tmp_path, monkeypatch, text, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "odd_module.py").write_text(CODE)
    (tmp_path / "torn_module.py").write_text("def f(:")
    (tmp_path / "null_module.py").write_text("x = 1\0")
    (tmp_path / "class_module.py").write_text("class Attention: ...")
    for asked in (check_module, lambda text: UserFunction.of(load(text), ())):
        with pytest.raises(LongCAError, match=said):
            asked(text)
    check_module("odd_module:f")
    assert "odd_module" not in sys.modules, "nothing of it runs"
