"""Implementations of attention that take as long as they are told to, and the clock that says so."""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np

from einops_fast.attention import choice
from einops_fast.attention.registry import Implementation
from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.gpus import gpu_ceilings

SPEC = AttentionSpec(
    batch=(2, 8), q_batch=(2, 8), k_batch=(2, 8), v_batch=(2, 8), q_len=1000, kv_len=1000, head_dim=64, v_head_dim=64,
    dtype="float16", scale=0.125, strides=((512000, 64, 512, 1),) * 3,
)  # fmt: skip


Q = np.ones((2, 3, 4))
PATTERN = "b i d, b j d, b j e -> b i e"


class Fake(Implementation):
    """Takes as long as it is told to."""

    name = "fake"

    def __init__(self, predicted, measured, lacking=None, queueing=0.0, slower=1.0, **attributes):
        self.predicted, self.measured, self.lacking, self.runs = predicted, measured, lacking, 0
        self.queueing, self.slower = queueing, slower
        vars(self).update(attributes)

    def lacks(self, spec):
        return self.lacking

    def seconds(self, spec, on):
        return self.predicted

    def run(self, spec, inputs):
        self.runs += 1
        if self.measured is None:
            raise RuntimeError("out of memory")
        return "result", None


class Constant(Fake):
    """Gives an array of one number, or raises, as a library that may refuse a call."""

    may_refuse = True

    def __init__(self, found):
        super().__init__(1.0, 1.0)
        self.found = found

    def run(self, spec, inputs):
        self.runs += 1
        if isinstance(self.found, BaseException):
            raise self.found
        return np.full((*spec.batch, spec.q_len, spec.v_head_dim), self.found), None


@dataclass
class Run:
    """What makes a call by a fake."""

    way: Fake

    def __call__(self):
        self.way.run(SPEC, None)


class FakeClock:
    """Gives the times that fakes say; may be told not to measure."""

    def __init__(self):
        self.allowed, self.calls, self.queued, self.settled, self.open = True, [], [], [], False

    def may_measure(self):
        return self.allowed

    def device_name(self):
        return "a GPU"

    def versions(self):
        return {"driver": "1"}

    def ceilings(self):
        return gpu_ceilings("H200")

    @contextmanager
    def aside(self):
        self.open = True
        yield
        self.open = False

    def run_of(self, way, plan, arrays):
        assert arrays is CALL
        return Run(way)

    def settle(self, runs):
        assert self.open
        self.settled.append([run.way.name for run in runs])
        for run in runs:
            run.way.measured *= run.way.slower

    def seconds(self, run, repeat):
        assert self.open
        run()
        self.calls.append(run.way.name)
        return [run.way.measured] * repeat

    def wall_seconds(self, run, calls):
        assert self.open
        self.queued.append(run.way.name)
        # Another process has the processor for a while.
        return max(run.way.queueing, run.way.measured) * (10.0 if len(self.queued) < 6 else 1.0)


CALL = ()


def choose(spec, mode, arrays=None, **options):
    """What is chosen for a spec, whatever the arrays are."""
    return choice.choose(SimpleNamespace(spec=spec, inputs=lambda arrays: None), mode, arrays, **options)


ON_GPU = replace(SPEC, device="cuda:0")
