"""How the backend of torch.compile is asked for: its name, modes, options and the patch."""

import re
from typing import Any

import pytest
import torch
from written_attention import attend, operands

import einops_fast
from einops_fast import EinsumError, fusions, patched

pytestmark = pytest.mark.usefixtures("nothing_compiled")


def test_the_next_backend_may_be_among_the_options() -> None:
    with fusions() as log:
        einops_fast.compile(attend, options={"then": "eager"})(*operands())
    assert len(log.fused) == 1
    with pytest.raises(EinsumError, match=r"then='aot_eager', but options has then='eager'"):
        einops_fast.compile(attend, then="aot_eager", options={"then": "eager"})


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of inductor, by their arguments; a stand-in records them and compiles nothing."""
    given: list[Any] = []

    def inductor(*options: Any) -> Any:
        def compiled(module: Any, inputs: Any) -> Any:
            given.append(options)
            return module.forward

        return compiled

    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", inductor)
    return given


def test_a_mode_reaches_inductor(given: list[Any]) -> None:
    with fusions() as log:
        einops_fast.compile(attend, mode="max-autotune", options={"shape_padding": True})(*operands())
    assert len(log.fused) == 1
    assert given == [("max-autotune", {"shape_padding": True}, None)]
    with pytest.raises(Exception, match=r"takes no options and no mode, but got mode='max-autotune'"):
        einops_fast.compile(attend, then="eager", mode="max-autotune")(*operands())


def test_torch_compile_is_patched_and_put_back(given: list[Any]) -> None:
    native = torch.compile
    with fusions() as log:
        with patched("torch.compile"):
            assert torch.compile is native
            torch.compile(attend, mode="max-autotune-no-cudagraphs")(*operands())
            torch._dynamo.reset()
            torch.compile(attend, backend="eager")(*operands())  # others are left alone

            @torch.compile(dynamic=False)
            def decorated(q: Any, k: Any, v: Any) -> Any:
                return attend(q, k, v)

            decorated(*operands())
        torch._dynamo.reset()
        torch.compile(attend, backend="eager")(*operands())
    assert len(log.fused) == 2
    assert given == [("max-autotune-no-cudagraphs", {}, None), (None, {}, None)]


def test_the_backend_has_a_name_where_it_is_installed() -> None:
    from torch._dynamo import list_backends

    if "einops_fast" not in list_backends(exclude_tags=None):
        pytest.skip("the package that is installed is an older one")
    with fusions() as log:
        torch.compile(attend, backend="einops_fast", options={"then": "eager"})(*operands())
    assert len(log.fused) == 1


def test_options_that_another_backend_does_not_take_are_refused() -> None:
    with pytest.raises(EinsumError, match="the backend 'eager' takes no options and no mode, but got max_autotune"):
        einops_fast.compile(attend, then="eager", options={"max_autotune": True})


@pytest.mark.parametrize(
    "wrong", [{"mode": "fastest"}, {"options": {"fastest": True}}, {"options": {"max_autotune": "yes"}}], ids=str
)
def test_what_inductor_has_not_is_refused_before_a_first_call(wrong: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError) as native:
        torch.compile(attend, **wrong)
    with patched("torch.compile"):
        for call in (lambda: torch.compile(attend, **wrong), lambda: torch.compile(**wrong)(attend)):
            with pytest.raises(RuntimeError) as error:
                call()
            assert str(error.value) == str(native.value)
        torch.compile(attend, options={"guard_filter_fn": lambda guards: [True for _ in guards]})  # Dynamo's own
    with pytest.raises(RuntimeError, match=re.escape(str(native.value)[:40])):
        einops_fast.compile(attend, **wrong)
    with pytest.raises(Exception, match="Invalid backend: 'fastest'"):
        einops_fast.compile(attend, then="fastest")
