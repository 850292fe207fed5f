"""The implementations of attention, in one list, and which of them a call may use."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.attention.torch_state import seed_for
from einops_fast.backends import check_registration
from einops_fast.backends.base import Likeness
from einops_fast.errors import OperandError
from einops_fast.planning.cost import Ceilings
from einops_fast.runtime.blocks import Setting, holding, traced_value
from einops_fast.vocabulary import closest

if TYPE_CHECKING:
    from einops_fast.attention.prepare import Plan


class Prepared(NamedTuple):
    """What makes the caller's result in calls of one kind."""

    run: Callable[..., Any]  # takes the arrays as they are given, one by one
    # Returns the likeness of arrays of all sizes that it is right for; it is told whether that is one head_dim alone.
    of_any_length: Callable[[bool], Likeness | None] | None = None


class Implementation(ABC):
    """One way to compute an attention. Subclass it, then :func:`register_implementation`."""

    #: Name, as in :func:`attention_backend`.
    name: ClassVar[str]
    #: Share of a GPU's peak that it reaches where nothing is in its way; times are predicted from it. While
    #: torch.compile traces, the implementation with the largest one is used. 0 if it holds scores in memory.
    efficiency: ClassVar[float] = 0.5
    #: The same by dtype, where it differs.
    efficiencies: ClassVar[Mapping[str, float]] = {}
    #: Whether it wants ``inputs.seed`` where there is dropout.
    seeded: ClassVar[bool] = False
    #: Whether it may take a little longer than another one and still be chosen: its calls take the host less time.
    preferred: ClassVar[bool] = False
    #: Whether it has kernels that are compiled for a call, so that no call begins with it where none is to wait.
    compiles: ClassVar[bool] = False
    #: Whether it makes a plan of its own at the first call of each shape, for which no call is to wait either.
    plans: ClassVar[bool] = False
    #: Whether it is a library's that may refuse, when it is called, what it was said to do. Then another one does it.
    may_refuse: ClassVar[bool] = False
    #: Whether what ``torch.jit.trace`` records of a call is right for arrays of other sizes, too.
    recordable: ClassVar[bool] = False

    @abstractmethod
    def lacks(self, spec: AttentionSpec) -> str | None:
        """Return what of the spec it can't do, in one sentence; ``None`` if it can do all of it."""

    def unavailable(self, device: str) -> str | None:
        """Return why it can't run on this device; ``None`` if it can."""
        return None

    def refuses(self, spec: AttentionSpec, inputs: AttentionInputs | None = None) -> str | None:
        """Return why it can't compute this, in one sentence; ``None`` if it can. This is what a choice asks.

        Args:
            spec: what to compute; where it has no device, no device is a reason.
            inputs: the arrays of a call that stands for all that are alike, where these may be a reason.
        """
        return (self.unavailable(spec.device) if spec.device else None) or self.lacks(spec)

    def seconds(self, spec: AttentionSpec, on: Ceilings) -> float:
        """Return the seconds that it takes on a GPU with these ceilings, with backward where there are gradients."""
        # Imported here because it is about implementations.
        from einops_fast.attention.prediction import fused_seconds

        return fused_seconds(spec, on, self.efficiency_for(spec))

    def efficiency_for(self, spec: AttentionSpec) -> float:
        """Return the share of the peak that it reaches at best in such calls."""
        return self.efficiencies.get(spec.dtype, self.efficiency)

    @abstractmethod
    def run(self, spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Any, Any]:
        """Return the result and, where ``spec.lse``, the log of the denominator, both in canonical order."""

    def knows(self, spec: AttentionSpec) -> Any:
        """Return what :meth:`compiled` finds out about a spec first, where that takes long, as constants."""
        return None

    def compiled(self, spec: AttentionSpec, knows: Any = None) -> Callable[[AttentionInputs], tuple[Any, Any]]:
        """Return :meth:`run` for one spec, after all thinking about it.

        Args:
            spec: what to compute.
            knows: what :meth:`knows` said. torch.compile follows this method, but not that one.
        """
        return partial(self.run, spec)

    def prepared(self, plan: Plan, arrays: Sequence[Any]) -> Prepared:
        """Return what a call keeps for the next ones like it, which only have other values.

        Args:
            plan: of the call.
            arrays: those of the call, in the order of the plan's views.
        """
        return self.by_views(plan)

    def by_views(self, plan: Plan) -> Prepared:
        """Return what makes canonical views of a call's arrays and runs :meth:`compiled` on them."""
        run = self.compiled(plan.spec)
        seeded = plan.spec.dropout_p > 0 and self.seeded

        def call(*arrays: Any) -> Any:
            inputs = plan.inputs(arrays)
            if seeded:
                inputs.seed = seed_for(inputs.q)
            return plan.answer(*run(inputs))

        return Prepared(call)


_lock = threading.RLock()
#: By name, the framework and what makes the implementation.
_entries: dict[str, tuple[str, Callable[[], Implementation]]] = {}
_made: dict[str, Implementation | str] = {}
_restriction: ContextVar[tuple[str, ...] | None] = ContextVar("einops_fast_attention_backend", default=None)
#: What :func:`allowed_names` returns while nothing is traced.
unchecked_names = _restriction.get
#: Changes with every registration, so that nobody keeps a choice made before it. A text: torch.compile takes that for a
#: constant, while a number that changes is any number.
generation = "0"


def register_implementation(name: str, framework: str, factory: Callable[[], Implementation]) -> None:
    """Add an implementation, or replace the one of the same name.

    Args:
        name: its name.
        framework: name of the backend whose arrays it takes; ``''`` for any. ``factory`` isn't called before such
            an array arrives.
        factory: makes it; called once. An ``ImportError`` says why it isn't there.

    Raises:
        OperandError: a name is no text, ``factory`` can't be called, or, once it is called, it makes no implementation.
    """
    check_registration(factory, name=name, framework=framework)
    global generation
    with _lock:
        _entries[name] = framework, factory
        _made.pop(name, None)
        generation = str(int(generation) + 1)


def registered_implementations() -> tuple[str, ...]:
    """Return the names of all implementations, in the order in which they are listed."""
    return tuple(_entries)


def implementation(name: str) -> Implementation | str:
    """Return the implementation of this name, or why there is none."""
    _wake((name,))
    return _made[name]


def _wake(names: tuple[str, ...]) -> bool:
    with _lock:
        for name in names:
            if name not in _made:
                try:
                    made = _entries[name][1]()
                    if not isinstance(made, Implementation):
                        what = f"made a {type(made).__name__}, which is no Implementation"
                        raise OperandError(f"the factory of attention {name!r} {what}")
                    _made[name] = made
                except (AttributeError, ImportError) as error:  # a library, or a private name of torch's that is gone
                    _made[name] = f"it isn't available: {error}"
    return True


def allowed_names() -> tuple[str, ...] | None:
    """Return the implementations that the innermost :func:`attention_backend` allows; ``None`` outside of any."""
    return traced_value("attention_backend") or _restriction.get()


# torch.compile calls these while tracing, and takes what they return as it is.
_wake._dynamo_marked_constant = True  # type: ignore[attr-defined]
allowed_names._dynamo_marked_constant = True  # type: ignore[attr-defined]


def candidates(
    spec: AttentionSpec, inputs: AttentionInputs | None = None, recorded: bool = False
) -> list[tuple[str, Implementation | str]]:
    """Return all implementations that a call may use, each as itself or as the reason why it can't be used."""
    found: list[tuple[str, Implementation | str]] = []
    names = allowed_names() or tuple(_entries)
    _wake(tuple([name for name in names if _entries[name][0] in ("", spec.framework)]))
    for name in names:
        framework, _ = _entries[name]
        if framework and framework != spec.framework:
            found.append((name, f"it takes {framework} arrays only"))
            continue
        made = _made[name]
        if recorded and not isinstance(made, str) and not made.recordable:
            found.append((name, "it would be recorded for these sizes alone"))
            continue
        found.append((name, made if isinstance(made, str) else made.refuses(spec, inputs) or made))
    return found


def none_left(answers: Sequence[tuple[str, Implementation | str]]) -> OperandError:
    """Return the error for a call that no implementation can do."""
    lines = [f"  {name}: {answer}" for name, answer in answers]
    others = [name for name in _entries if name not in dict(answers)]
    if others:
        lines.append(f"  not allowed by attention_backend: {', '.join(others)}")
    return OperandError("no implementation of attention can do this:\n" + "\n".join(lines))


def attention_backend(*names: str) -> Setting:
    """Set which implementations calls may use: the first one that can do a call is used for it.

    A call alone holds from then on; ``with attention_backend(...):`` holds in the block, and a function that is
    decorated with it has it in its calls. Blocks nest: an inner one counts alone. Each thread and each asyncio task has
    its own, as with ``torch.set_grad_enabled``. A block may be in code that torch.compile compiles, or around it.

    Args:
        names: of implementations, best first. Nothing is measured then.

    Raises:
        OperandError: there is no implementation of that name, or no name.

    Example:
        >>> import numpy as np
        >>> from einops_fast import attention, attention_backend
        >>> q = k = v = np.ones((2, 5, 4))
        >>> with attention_backend('math'):
        ...     attention('b i d, b j d, b j e -> b i e', q, k, v).shape
        (2, 5, 4)
    """
    if not names:
        raise OperandError(f"attention_backend needs a name; there are {', '.join(_entries)}")
    for name in names:
        if not isinstance(name, str) or name not in _entries:
            known = f"there are {', '.join(_entries)}{closest(name, _entries)}"
            raise OperandError(f"no implementation of attention is called {name!r}; {known}")
    return holding(_restriction, tuple(dict.fromkeys(names)), "attention_backend")


def _built_in(module: str, class_name: str) -> Implementation:
    made: Implementation = getattr(import_module(module), class_name)()
    return made


_ATTENTION = "einops_fast.backends.torch.attention.implementations"
register_implementation("triton", "torch", partial(_built_in, f"{_ATTENTION}.triton", "Triton"))
register_implementation("cudnn", "torch", partial(_built_in, f"{_ATTENTION}.sdpa", "Cudnn"))
register_implementation("flash", "torch", partial(_built_in, f"{_ATTENTION}.sdpa", "Flash"))
register_implementation("efficient", "torch", partial(_built_in, f"{_ATTENTION}.sdpa", "Efficient"))
register_implementation("cpu", "torch", partial(_built_in, f"{_ATTENTION}.cpu", "Cpu"))
register_implementation("math", "", partial(_built_in, "einops_fast.attention.reference", "Math"))
