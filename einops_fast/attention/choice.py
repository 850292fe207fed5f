"""Which implementation computes an attention: the first allowed one, or on a GPU the fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from einops_fast.attention.refusals import refusals_of
from einops_fast.attention.registry import Implementation, allowed_names, candidates, none_left
from einops_fast.attention.spec import AttentionInputs, AttentionSpec

if TYPE_CHECKING:
    from einops_fast.attention.calls import GivenCall

__all__ = ["Decision", "choose"]


@dataclass(frozen=True)
class Decision:
    """What was chosen, and why.

    Attributes:
        implementation: what was chosen.
        why: in a few words.
        answers: what each implementation said, itself if it can.
        predicted: predicted seconds by name.
        measured: measured seconds by name, where there are any.
        final: whether it holds for all later calls too.
    """

    implementation: Implementation
    why: str
    answers: Sequence[tuple[str, Implementation | str]]
    predicted: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    final: bool = True


def choose(
    spec: AttentionSpec,
    device: str,
    mode: str,
    call: GivenCall | None = None,
    quiet: bool = False,
    recorded: bool = False,
) -> Decision:
    """Choose an implementation.

    Args:
        spec: what to compute.
        device: where.
        mode: of measuring, see :func:`einops_fast.autotune`.
        call: the first one; without it nothing is measured.
        quiet: a compiler traces the call: nothing is predicted, measured or read from disk.
        recorded: ``torch.jit.trace`` records the call, whose sizes stand for any.

    Raises:
        OperandError: no implementation that is allowed can do it. It lists the reasons of all.
    """
    answers = candidates(spec, device, recorded)
    if call is not None and not (quiet or recorded):
        refused = refusals_of(spec, device)
        answers = [(name, refused.get(name) or _unless_refused(answer, spec, call.inputs)) for name, answer in answers]
    able = [answer for _, answer in answers if isinstance(answer, Implementation)]
    if not able:
        raise none_left(answers)
    if allowed_names() is not None:
        return Decision(able[0], "the first that attention_backend allows and that can", answers)
    if recorded:
        return Decision(able[0], "the first that torch.jit.trace records for all sizes", answers, final=False)
    if not (device.startswith("cuda") and spec.framework == "torch"):
        return Decision(able[0], "the first that can; nothing is measured on a CPU", answers)
    if quiet:
        best = able[0]
        for way in able[1:]:  # not max(), which can't be traced with a key
            if way.efficiency_in(spec.dtype) > best.efficiency_in(spec.dtype):
                best = way
        return Decision(best, "the one that is the fastest where nothing is in its way", answers, final=False)
    # Imported when it is needed: it reads the disk, and there may be no GPU.
    from einops_fast.attention.measured import choose_by_time
    from einops_fast.backends.torch.attention.implementations.clock import TorchClock

    return choose_by_time(answers, spec, device, mode, call, TorchClock(device))


def _unless_refused(answer: Implementation | str, spec: AttentionSpec, inputs: AttentionInputs) -> Implementation | str:
    return answer if isinstance(answer, str) else answer.refuses(spec, inputs) or answer
