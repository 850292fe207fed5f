"""`explain_attention`: what a call would do, and what it would cost, without doing it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any

from einops_fast.attention.arguments import read_call
from einops_fast.attention.arrays import arrays_of
from einops_fast.attention.attend import attention, own_call, plan_of
from einops_fast.attention.choice import Decision, choose
from einops_fast.attention.memory import current_score_memory
from einops_fast.attention.options import Options
from einops_fast.attention.prediction import attention_bytes, attention_flops
from einops_fast.attention.registry import Implementation, candidates, none_left
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends import get_backend
from einops_fast.backends.absent_gpu import aimed
from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.errors import OperandError
from einops_fast.explanation import scaled
from einops_fast.observing.pictures import Picture, Pictured, bars
from einops_fast.planning.cost import Ceilings
from einops_fast.vocabulary import names_of, renamed


@dataclass(frozen=True)
class AttentionExplanation(Pictured):
    """What would be done: print it, plot it, or look at its attributes.

    Attributes:
        text: the pattern.
        spec: the attention in canonical form.
        device: where.
        implementation: name of the one that computes it.
        why: why that one.
        answers: by name, ``'can'``, or the reason why not.
        predicted: by name, predicted seconds, where they are known.
        measured: by name, measured seconds, where there are any.
        flops: of the products, with the backward's where gradients may be asked for.
        moved_bytes: of operands and result, each once.
        lengths_known: whether packed sequences count in FLOPs as long as they are, and not as the longest one: their
            lengths are read on a CPU only.
    """

    text: str
    spec: AttentionSpec
    device: str
    implementation: str
    why: str
    answers: Mapping[str, str]
    predicted: Mapping[str, float]
    measured: Mapping[str, float]
    flops: int
    moved_bytes: int
    lengths_known: bool = True

    @property
    def seconds(self) -> float | None:
        """What the call takes: as measured, else as predicted; ``None`` if neither is known."""
        return self.measured.get(self.implementation, self.predicted.get(self.implementation))

    @property
    def score_bytes(self) -> int:
        """The most that the reference would hold of scores at a time; 0 where a fused one is used."""
        if self.implementation != "math":
            return 0
        wide = 8 if self.spec.dtype == "float64" else 4
        whole = self.spec.kv_len * self.spec.q_len * wide
        for size in self.spec.batch:
            whole *= size
        return min(whole, current_score_memory())

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, as JSON takes them."""
        return {
            **{each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("text", "spec")},
            "pattern": self.text,
            "backend": self.spec.framework,
            "predicted_seconds": self.seconds,
            "score_bytes": self.score_bytes,
            "attention": asdict(self.spec),
        }

    def __str__(self) -> str:
        spec = self.spec
        lines = [
            self.text,
            f"on {spec.framework} ({self.device}) in {spec.dtype}" + (", with gradients" if spec.gradients else ""),
            f"batch {'×'.join(map(str, spec.batch)) or 1}, {spec.q_len} queries, {spec.kv_len} keys, "
            f"head_dim {spec.head_dim}, v_head_dim {spec.v_head_dim}",
        ]
        features = _features(spec)
        if features:
            lines.append(f"with {', '.join(features)}")
        counted = "" if self.lengths_known else " if each sequence were as long as the longest"
        lines.append(f"{scaled(self.flops, 'FLOP')}{counted}, {scaled(self.moved_bytes, 'B')} of operands and result")
        if self.seconds is not None:
            known = "measured" if self.implementation in self.measured else "predicted"
            lines.append(f"{known} to take {scaled(self.seconds, 's')}")
        if self.score_bytes:
            lines.append(f"up to {scaled(self.score_bytes, 'B')} of scores at a time")
        lines += ["", f"by {self.implementation}: {self.why}"]
        width = max(map(len, self.answers))
        lines += [
            f"  {name.ljust(width)}  {', '.join([self.answers[name], *self._times(name)])}" for name in self.answers
        ]
        return "\n".join(lines)

    def plot(self) -> Picture:
        """Return a bar for each implementation, as long as the time that it takes; those that can't do it are red."""
        rows = []
        for name, answer in self.answers.items():
            seconds = self.measured.get(name, self.predicted.get(name, 0.0)) if answer == "can" else 0.0
            chosen = ["chosen"] if name == self.implementation else []
            rows.append((name, seconds, ", ".join([*chosen, *self._times(name)]) if seconds else answer))
        work = f"{scaled(self.flops, 'FLOP')}, {scaled(self.moved_bytes, 'B')} of operands and result"
        return bars(self.text, f"on {self.spec.framework} ({self.device}) in {self.spec.dtype}: {work}", rows)

    def _times(self, name: str) -> list[str]:
        known = ("measured", self.measured), ("predicted", self.predicted)
        return [f"{how} {scaled(found[name], 's')}" for how, found in known if name in found]


def _features(spec: AttentionSpec) -> list[str]:
    found = [f"causality ({spec.alignment})"] if spec.causal else []
    if spec.window != (None, None):
        found.append(f"window {spec.window}")
    if spec.softcap:
        found.append(f"softcap {spec.softcap:g}")
    if spec.dropout_p:
        found.append(f"dropout {spec.dropout_p:g}")
    if spec.page_size:
        found.append(f"pages of {spec.page_size}")
    names = {"bias": "a bias", "mask": "a mask", "alibi": "slopes", "sinks": "sinks", "segments": "segments",
             "varlen": "packed sequences", "cache": "cache_seqlens", "lse": "the log of the denominator",
             "deterministic": "deterministic gradients"}  # fmt: skip
    return found + [text for name, text in names.items() if getattr(spec, name)]


def explain_attention(*operands: Any, **options: Any) -> AttentionExplanation:
    """Return what :func:`einops_fast.attention` would do with these arguments, without doing or measuring it.

    Args:
        operands, options: as for :func:`einops_fast.attention`.

    Raises:
        EinsumError: as :func:`einops_fast.attention` would.

    Example:
        >>> import numpy as np
        >>> from einops_fast import explain_attention
        >>> q = k = v = np.ones((2, 5, 8, 16), 'float32')
        >>> e = explain_attention('b i h d, b j h d, b j h e -> b i h e', q, k, v)
        >>> e.implementation, e.flops
        ('math', 25600)
    """
    options = renamed(attention, options, names_of(attention))
    asked = Options._make([options.get(name, usual) for name, usual in Options._field_defaults.items()])
    request, arrays = read_call(operands, options.get("layout"), options.get("sequence"), asked, options)
    text = request.pattern
    if getattr(arrays["q"], "is_nested", False) is True:
        from einops_fast.backends.torch.attention.implementations.nested import packed_call

        _, request, arrays = packed_call(request, arrays)
    backend, arrays = own_call(arrays)
    if backend.attend is not None:
        raise OperandError(f"explain_attention explains what one device does: give parts, not a {backend.name} of all")
    plan, given = plan_of(request, arrays, backend.name), (*arrays.values(),)
    spec, inputs, gpu = plan.spec, plan.inputs(given), aimed()
    if gpu is None:
        decision = choose(plan, "never", given)
    else:
        spec = replace(spec, device="cuda:0")
        decision = _least_predicted(spec, gpu_ceilings(gpu.name))
    lengths_known = not spec.varlen or spec.device.startswith("cpu")
    return AttentionExplanation(
        text,
        spec,
        spec.device if gpu is None else gpu.name,
        decision.implementation.name,
        decision.why,
        {name: "can" if isinstance(answer, Implementation) else answer for name, answer in decision.answers},
        decision.predicted or _predicted(spec, inputs, decision),
        decision.measured,
        _packed_flops(spec, inputs) if spec.varlen and lengths_known else attention_flops(spec),
        attention_bytes(_side_by_side(spec, inputs) if spec.varlen else spec),
        lengths_known,
    )


def _least_predicted(spec: AttentionSpec, on: Ceilings) -> Decision:
    answers = candidates(spec)
    predicted = {name: way.seconds(spec, on) for name, way in answers if isinstance(way, Implementation)}
    if not predicted:
        raise none_left(answers)
    best = dict(answers)[min(predicted, key=lambda name: predicted[name])]
    assert isinstance(best, Implementation)
    return Decision(best, "the least predicted; nothing is measured on a GPU that isn't here", answers, predicted)


def _predicted(spec: AttentionSpec, inputs: AttentionInputs, decision: Decision) -> dict[str, float]:
    """Predict the times that the choice did without."""
    on = get_backend(spec.framework).target([inputs.q]).ceilings
    return {name: answer.seconds(spec, on) for name, answer in decision.answers if isinstance(answer, Implementation)}


def _packed_flops(spec: AttentionSpec, inputs: AttentionInputs) -> int:
    on = arrays_of(spec.framework)
    ends = [on.integers(each) for each in (inputs.cu_seqlens_q, inputs.cu_seqlens_kv)]
    lengths = Counter(zip(*[[end - start for start, end in pairwise(each)] for each in ends], strict=True))
    alone = replace(spec, batch=(1, *spec.batch[1:]), varlen=False)
    return sum(
        times * attention_flops(replace(alone, q_len=q_len, kv_len=kv_len))
        for (q_len, kv_len), times in lengths.items()
    )


def _side_by_side(spec: AttentionSpec, inputs: AttentionInputs) -> AttentionSpec:
    """Return the spec of operands and a result of the same size that aren't packed."""
    q_len, kv_len = int(inputs.q.shape[-2]), int(inputs.k.shape[-2])
    return replace(spec, batch=(1, *spec.batch[1:]), varlen=False, q_len=q_len, kv_len=kv_len)
