"""What is taken for a handler, and what a handler may give back."""

import asyncio
import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from decimal import Decimal
from typing import Any

import pytest

from dispatch.handlers import NotRunError, check_handler, result_of
from ledger.errors import InputError


def plain(payload: Any) -> Any:
    return payload


async def later(payload: Any) -> Any:
    return payload


def step_by_step(payload: Any) -> Iterator[Any]:
    yield payload


async def both(payload: Any) -> Any:
    yield payload


class Called:
    def __call__(self, payload: Any) -> Any:
        return payload

    async def later(self, payload: Any) -> Any:
        return payload


class CalledLater:
    async def __call__(self, payload: Any) -> Any:
        return payload


class CalledStepByStep:
    def __call__(self, payload: Any) -> Iterator[Any]:
        yield payload


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(payload: Any) -> Any:
        return function(payload)

    return wrapper


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (later, "an async function"),
        (step_by_step, "a generator function"),
        (both, "an async generator function"),
        (Called().later, "an async function"),
        (CalledLater(), "an async function"),
        (CalledStepByStep(), "a generator function"),
        (Called, "a class"),
        (dict, "a class"),
        (functools.partial(later), "an async function"),
        (functools.partial(CalledLater()), "an async function"),
        (decorated(functools.partial(step_by_step)), "a generator function"),
        (functools.partial(decorated(decorated(both))), "an async generator function"),
        (functools.lru_cache(later), "an async function"),
        (contextlib.contextmanager(step_by_step), "a generator function"),
    ],
)
def test_what_a_call_does_not_run_is_refused(function: Any, kind: str) -> None:
    with pytest.raises(InputError, match=f"handler rewards:grant: it is, or wraps, {kind}.*give a plain function"):
        check_handler(function, "rewards:grant")


@pytest.mark.parametrize(
    "function", [plain, Called(), Called().__call__, decorated(plain), functools.partial(decorated(plain)), len]
)
def test_what_a_call_runs_is_taken(function: Any) -> None:
    assert check_handler(function, "rewards:grant") is function


def pending() -> Any:
    loop = asyncio.new_event_loop()
    try:
        return loop.create_future()
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: later(1), "a coroutine; its body has not run"),
        (lambda: step_by_step(1), "a generator; its body has not run"),
        (lambda: both(1), "an async generator; its body has not run"),
        (lambda: (one for one in "ab"), "a generator"),
        (Future, "a Future"),
        (pending, "an awaitable"),
        (lambda: map(plain, [1]), "a map or filter"),
        (lambda: filter(plain, [1]), "a map or filter"),
        (lambda: [1, {"a": (2, [later(1)])}], "a coroutine"),
        (lambda: OrderedDict(a={Future()}), "a Future"),
    ],
)
def test_work_that_has_not_run_is_no_result(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(NotRunError, match=f"^the handler returned {said}"):
        result_of(make())


def round_about() -> Any:
    ring: list[Any] = []
    ring.append(ring)
    return ring


class Odd(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "returned", [object(), float("nan"), Decimal("NaN"), "x" * 70_000, round_about(), Odd(a=1), iter("a")]
)
def test_a_result_that_cannot_be_kept_is_left_out(returned: Any) -> None:
    result = result_of(returned)
    assert result.left_out
    assert result.json == f'{{"left_out":"{result.left_out}"}}'.encode()


def test_a_result_is_kept() -> None:
    result = result_of({"b": Decimal("1.10"), "a": None})
    assert (result.json, result.left_out) == (b'{"a":null,"b":1.1}', None)
