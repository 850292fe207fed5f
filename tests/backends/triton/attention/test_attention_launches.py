"""What a plan of attention's kernels launches, with which arrays: no kernel runs here."""

from collections.abc import Callable
from typing import Any

import pytest

from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.attention.around.row_copies import RowCopies
from einops_fast.backends.triton.attention.launches import FORWARD, Launch, Plan, Room
from einops_fast.backends.triton.attention.problem import Layout

EXTRAS = Extras(bias="bias", mask="mask")

ARRAYS = ("q", "k", "v", "out", "lse", EXTRAS)


class Rooms:
    """Memory that gives names in place of arrays."""

    def workspace(self, like: str, elements: int, dtype: str) -> str:
        assert like == "q"
        return f"{elements} {dtype}"


@pytest.fixture
def ran() -> list[tuple[str, tuple[Any, ...]]]:
    return []


def kernel(ran: list[Any], name: str, queued: bool | None = None) -> Callable[..., Any]:
    def call(memory: Any, device: int, *arrays: Any) -> bool | None:
        ran.append((name, arrays))
        return queued

    return call


def test_a_lone_launch_of_what_is_given_is_the_kernel_itself(ran: list[Any]) -> None:
    call = kernel(ran, "forward")
    assert Plan(FORWARD, (Launch(call, FORWARD),)).run is call


@pytest.mark.parametrize("takes", [("q", None, "lse"), ("q", "bias", None, "sinks"), ("mask", Extras(*Extras._fields))])
def test_a_lone_launch_takes_some_arrays(takes: tuple[Any, ...], ran: list[Any]) -> None:
    """And by the long way the same."""
    plan = Plan(FORWARD, (Launch(kernel(ran, "forward"), takes),))
    assert plan.run(Rooms(), 0, *ARRAYS) is None
    plan(Rooms(), 0, *ARRAYS)
    known = {**dict(zip(FORWARD, ARRAYS, strict=True)), **EXTRAS._asdict(), None: None}
    expected = tuple([EXTRAS if isinstance(name, tuple) else known[name] for name in takes])
    assert ran == [("forward", expected)] * 2


@pytest.mark.parametrize("queued", [True, False])
def test_what_is_launched_otherwise(queued: bool, ran: list[Any]) -> None:
    """Also of a lone launch, and with rooms of its own."""
    then = (Launch(kernel(ran, "then"), ("out",)),)
    other = (Launch(kernel(ran, "other"), ("v", "more"), (Room("more", 2),)),)
    lone = Launch(kernel(ran, "hopper", queued), ("q", "bias"), otherwise=other)
    Plan(FORWARD, (lone,)).run(Rooms(), 0, *ARRAYS)
    assert ran[-1] == (("hopper", ("q", "bias")) if queued else ("other", ("v", "2 float32")))
    ran.clear()
    Plan(FORWARD, (lone._replace(then=then), *then)).run(Rooms(), 0, *ARRAYS)
    assert [name for name, _ in ran] == ["hopper", "then" if queued else "other", "then"]


def test_launches_on_copies(ran: list[Any]) -> None:
    """Copies go in before and out after; extras have theirs, one by one and together."""
    layout = Layout((2, 3, 5), (15, 5, 1), "float16")
    copies = RowCopies({"k": layout, "out": layout, "mask": layout._replace(dtype="bool")})
    other = Launch(kernel(ran, "other"), ("k", "extras"))
    launches = copies.around((Launch(kernel(ran, "hopper", False), ("q", "k", "mask"), otherwise=(other,)),), ("out",))
    into, hopper, back = launches
    assert into.takes == (("k", "mask"), ("k copy", "mask copy"))
    assert [room.name for room in into.rooms] == ["k copy", "out copy", "mask copy"]
    assert hopper.takes == ("q", "k copy", "mask copy")
    assert back.takes == (("out copy",), ("out",))
    Plan(FORWARD, (into._replace(call=kernel(ran, "into")), hopper)).run(Rooms(), 0, *ARRAYS)
    copied, masks = "96 float16", "96 bool"
    assert ran == [
        ("into", (("k", "mask"), (copied, masks))),
        ("hopper", ("q", copied, masks)),
        ("other", (copied, EXTRAS._replace(mask=masks))),
    ]
