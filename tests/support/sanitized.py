"""One small problem of each kind of kernel, run once and checked against float64: for NVIDIA's compute-sanitizer.

    compute-sanitizer --tool memcheck python tests/support/sanitized.py boxes threads

runs those whose names begin so; without names, all; ``--list`` says which there are. Each tensor has memory of its own
then, so that what lies beyond its end is nobody's. Without a GPU, Triton's interpreter and NumPy execute the kernels
that they can: that shows that the script is right, and no more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    # Before torch is imported: out of blocks that it keeps, it would hand out memory beside other tensors'.
    os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from attention_oracle import oracle
from attention_problems import attention, check, check_low_precision, hopper_calls, rms, run, tiles
from families import DEVICE, FAMILIES, allowed, compiles, error_of, executed
from fused_steps import fused_step
from gluon_on_cpu import hopper_on_cpu, rows_on_cpu
from kernel_problems import MEMORY
from ops_calls import FUNCTIONS, found, operands
from ops_problems import assert_near, kernels, launched
from poisoned_integers import Poisoned as PoisonedIntegers

from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.triton.attention.around import copyable
from einops_fast.backends.triton.attention.general.tilings import BackwardTilings, Tiling
from einops_fast.backends.triton.rows.contest import Contest
from einops_fast.planning.cost import is_integer
from einops_fast.runtime.plan_cache import clear_plans

HOPPER = DEVICE == "cuda" and torch.cuda.get_device_capability()[0] == 9


class NotHereError(Exception):
    """Nothing executes the kernel here."""


# ---- contractions


def contraction(name: str) -> str:
    """The first and the last of a family's candidates: the best prediction, and often the tiles that differ most."""
    family = FAMILIES[name]
    if not family.available:
        raise NotHereError
    arrays = family.operands()
    memory: Any = PoisonedIntegers() if is_integer(family.dtype) else MEMORY
    read = [arrays[slot] for slot in fused_step(family.equation, arrays).reads]
    with executed():
        members = family.members(arrays)
        ran = {way.name: way for way in (next(filter(compiles, each)) for each in (members, members[::-1]))}
        for way in ran.values():
            assert error_of(way.run(memory, 0)(*read), family.equation, arrays) <= allowed(family), way.name
    return "; ".join(ran)


# ---- attention


def attention_general(**options: Any) -> str:
    """The kernels for any GPU, with tiles so small that there are several, forward and backward."""
    spec, inputs = attention(**options)
    with tiles():
        check(spec, inputs)
    return "forward, backward"


def attention_of_halves(**options: Any) -> str:
    """The same in float16, with the tiles that are for it; Hopper's own kernels take no such scale."""
    spec, inputs = attention(head_dim=64, dtype="float16", scale=-0.125, **options)
    forward, backward = Tiling(64, 64, 4, 3), Tiling(64, 64, 4, 2)
    with tiles(forward, BackwardTilings(backward, backward, backward)):
        check_low_precision(spec, inputs)
    return "forward, backward"


def attention_short() -> str:
    """All positions at once: those of several batch elements that share a bias, and of one."""
    for lengths, bias in (((49, 49), (1, 2, 49, 49)), ((113, 50), None)):
        check_low_precision(*attention((3, 2), *lengths, 32, dtype="float16", bias=bias, causal=True))
    return "forward, backward"


def attention_few_queries() -> str:
    """The keys in parts, and what puts these together."""
    spec, inputs = attention((2, 2), q_len=3, kv_len=90)
    with tiles(Tiling(16, 16, 4, 1, parts=4)):
        check(spec, inputs, gradients=False)
    return "forward in parts"


def attention_hopper(calls: int, **options: Any) -> str:
    if DEVICE == "cuda" and not HOPPER:
        raise NotHereError
    spec, inputs = attention(**{"batch": (2, 3), "dtype": "float16", **options})
    with (
        hopper_calls() as queued,
        # Few positions are copied, too.
        mock.patch.object(copyable, "_LENGTH", 1),
        nullcontext() if HOPPER else hopper_on_cpu() as ran,
    ):
        check_low_precision(spec, inputs)
    assert queued == [True] * calls if HOPPER else len(ran) == calls, queued or ran
    return f"{calls} kernels"


def attention_decode(**options: Any) -> str:
    """Hopper's kernel for few queries, with lengths of sequences or without."""
    if DEVICE == "cuda" and not HOPPER:
        raise NotHereError
    lengths = options.pop("lengths", None)
    given = {"batch": (2, 2, 4), "k_batch": (2, 2, 1), "head_dim": 64, "dtype": "float16", **options}
    spec, inputs = attention(cache=lengths is not None, **given)
    if lengths is not None:
        inputs.cache_seqlens = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    with hopper_calls() as queued, nullcontext() if HOPPER else hopper_on_cpu() as ran:
        result = run(spec, inputs, gradients=False)
    assert queued == [True] if HOPPER else len(ran) == 1, queued or ran
    out, _ = oracle(spec, inputs)
    assert rms(result["out"], out) <= torch.finfo(torch.float16).eps * float(out.square().mean().sqrt()) + 1e-12
    return "forward"


ADDED = {"bias": (1, 3, 300, 400), "mask": (2, 1, 300, 400)}

ATTENTION: dict[str, Callable[[], str]] = {
    "attention": lambda: attention_general(causal=True, mask=(2, 1, 21, 37), bias=(1, 2, 21, 37)),
    "attention, window and sinks": lambda: attention_general(window=(11, 5), sinks=(1, 2), softcap=2.0),
    "attention, segments and slopes": lambda: attention_general(segments=(2, 1), alibi=(1, 2)),
    "attention, keys of several heads": lambda: attention_general(batch=(2, 2, 2), k_batch=(2, 2, 1)),
    "attention, float16": lambda: attention_of_halves(batch=(2, 2), q_len=129, kv_len=203, causal=True),
    "attention, short": attention_short,
    "attention, few queries": attention_few_queries,
    "hopper attention": lambda: attention_hopper(3, q_len=129, kv_len=203, head_dim=64, causal=True),
    "hopper attention, wide": lambda: attention_hopper(4, q_len=129, kv_len=203, head_dim=192, v_head_dim=128),
    "hopper attention, odd features": lambda: attention_hopper(3, q_len=100, kv_len=130, head_dim=75, v_head_dim=53),
    "hopper attention, bias and mask": lambda: attention_hopper(4, q_len=300, kv_len=400, head_dim=64, **ADDED),
    "hopper attention, window": lambda: attention_hopper(3, q_len=300, kv_len=300, head_dim=128, window=(100, 30)),
    "decode": lambda: attention_decode(q_len=2, kv_len=1037, causal=True, alignment="bottom_right"),
    "decode, wide": lambda: attention_decode(q_len=5, kv_len=300, head_dim=192, v_head_dim=128),
    "decode, lengths": lambda: attention_decode(q_len=1, kv_len=700, lengths=(700, 3), sinks=(1, 2, 4)),
}


# ---- operators along rows


@contextmanager
def taking(choose: Callable[[Sequence[Any]], Any]) -> Iterator[list[str]]:
    """In every contest, one of the ways; gives their names."""
    names: list[str] = []

    def chosen(contest: Contest, arrays: Sequence[Any]) -> tuple[Any, bool]:
        way = choose(contest.ways)
        names.append(f"{contest.call.problem.partition(',')[0]} {way.name}")
        return way, True

    clear_plans()
    with mock.patch.object(Contest, "choose", chosen):
        yield names
    clear_plans()


def compared(name: str, given: Sequence[Any], context: Any) -> None:
    """The result and the gradients of an operator, with those of torch in float64."""
    with mock.patch("einops_fast.backends.torch.operator.on_gpu", return_value=False):
        expected, native = found(name, [each.double() for each in given]), found(name, given)
    with context, kernels():
        got = found(name, given)
    for each, right, theirs in zip(got, expected, native, strict=True):
        assert_near(each, right, theirs, 4.0)


LAYOUTS = [((40, 70), "contiguous"), ((6, 2057), "contiguous"), ((2, 33001), "contiguous"), ((40, 24), "reversed")]
"""Short rows, blocks of odd ones, rows in parts, and neighbours in different rows."""


def rows(name: str) -> str:
    """Of each layout the first and the last of the ways: those of the rule, and those that differ most from it."""
    ran: dict[str, None] = {}
    for shape, layout in LAYOUTS:
        for at in (0, -1):
            context = taking(lambda ways, at=at: ways[at])
            with ExitStack() as stack:
                names = stack.enter_context(context)
                compared(name, operands(shape, layout), nullcontext())
            ran |= dict.fromkeys(names)
    return f"{len(ran)} kernels"


@contextmanager
def few_processors() -> Iterator[None]:
    """So few that a program, or a cluster, has several rows of a few; without a GPU, NumPy executes them."""
    limits = mock.patch.object(TorchMemory, "limits", lambda self, device: (self.shared(device), 4))
    with limits, rows_on_cpu() if DEVICE == "cpu" else nullcontext():
        yield


def clusters(name: str, dtype: str, columns: int, last: bool, wanted: Sequence[str]) -> str:
    """Rows that clusters share: the first or the last of the tilings."""
    if DEVICE == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        raise NotHereError

    def choose(ways: Sequence[Any]) -> Any:
        shared = [way for way in ways if way.name.startswith("clusters")]
        return shared[-1 if last else 0] if shared else ways[0]

    given = [each.to(getattr(torch, dtype)) for each in operands((9, columns), "contiguous")]
    names: list[str] = []
    with few_processors(), taking(choose), launched(names):
        compared(name, given, nullcontext())
    assert set(wanted) <= set(names), names
    return ", ".join(dict.fromkeys(each for each in names if "cluster" in each))


SOFTMAX = ("softmax_cluster_kernel", "softmax_gradient_cluster_kernel")
NORM = ("norm_cluster_kernel", "norm_gradient_cluster_kernel")

ROWS: dict[str, Callable[[], str]] = {
    **{f"rows, {name}": (lambda name=name: rows(name)) for name in FUNCTIONS},
    "clusters, softmax": lambda: clusters("softmax", "float16", 16_384, False, SOFTMAX),
    "clusters, log softmax": lambda: clusters("log_softmax", "float32", 20_016, True, SOFTMAX),
    "clusters, layer norm": lambda: clusters("layer_norm", "float16", 20_016, False, NORM),
    "clusters, rms norm": lambda: clusters("rms_norm", "float16", 16_384, True, NORM),
    "clusters, sum": lambda: clusters("sum", "float32", 16_400, False, NORM[:1]),
}


PROBLEMS: dict[str, Callable[[], str]] = {
    **{name: (lambda name=name: contraction(name)) for name in FAMILIES},
    **ATTENTION,
    **ROWS,
}


def main(names: Sequence[str]) -> int:
    """Run the problems whose names begin with one of these, and say what ran; the number of those that went wrong."""
    if "--list" in names:
        print(*PROBLEMS, sep="\n")
        return 0
    unknown = [name for name in names if not any(each.startswith(name) for each in PROBLEMS)]
    if unknown:
        print(f"there is nothing whose name begins with {' or '.join(unknown)}; --list says what there is")
        return 2
    wrong = 0
    for name, problem in PROBLEMS.items():
        if names and not name.startswith(tuple(names)):
            continue
        try:
            told = f"right: {problem()}"
            if DEVICE == "cuda":
                torch.cuda.synchronize()
        except NotHereError:
            told = "not executed here"
        except Exception as error:
            wrong, told = wrong + 1, f"WRONG: {type(error).__name__}: {error}"
        print(f"{name}: {told}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 99))
