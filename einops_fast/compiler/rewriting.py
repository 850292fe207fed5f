"""Rewrites a graph of Dynamo's: each match is checked, tried on what is known of its tensors, and exchanged."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node

from einops_fast.compiler.attention import match_attention
from einops_fast.compiler.chains import match_chain
from einops_fast.compiler.library_attention import match_library_attention
from einops_fast.compiler.loops import match_loop
from einops_fast.compiler.losses import match_loss
from einops_fast.compiler.match import Inserted, Match, Miss
from einops_fast.compiler.memory import changes_layout, is_written, name_what_is_written, storages_of
from einops_fast.compiler.nodes import called, dtype_of, example_of, name_of, same_size, source_of
from einops_fast.compiler.report import Fusion
from einops_fast.compiler.safety import check
from einops_fast.compiler.small_products import match_small_product
from einops_fast.errors import EinsumError

_UNCHANGED = ("clone", "contiguous", "detach", "getitem")
"""Functions that compute nothing, and have no effect where nobody uses their result."""

_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


_Find = Callable[[Node], Match | None]
"""Returns a match that ends at a node, ``None`` if there is none, or raises :class:`Miss`."""

_REWRITES: tuple[tuple[str, _Find], ...] = (
    ("attention", match_attention),
    ("attention", match_library_attention),
    ("loop of attentions", match_loop),
    ("linear cross entropy", match_loss),
    ("chain", match_chain),
)
"""What is looked for, by its name in the report: in this order, each in the whole graph.

Nodes are asked from the last one on, so that a match is the longest.
"""

_BEFORE_FUSING: tuple[str, _Find] = "small product", match_small_product
"""For compilers that fuse elementwise functions alone."""


def rewritten(module: GraphModule, *, fuses: bool = True) -> list[Fusion]:
    """Rewrite what is found in a graph, and in those within it, in place; return that, and what was missed.

    Args:
        module: Dynamo's graph.
        fuses: whether the compiler that gets the result fuses elementwise functions.
    """
    rewrites = (*_REWRITES, _BEFORE_FUSING) if fuses else _REWRITES
    # What is checkpointed has a graph of its own.
    graphs = [each for each in module.modules() if isinstance(each, GraphModule)]
    return [fusion for each in graphs for fusion in _rewritten(each, rewrites)]


def _rewritten(module: GraphModule, rewrites: Sequence[tuple[str, _Find]]) -> list[Fusion]:
    graph = module.graph
    if any(map(changes_layout, graph.nodes)):
        return []  # what is known of tensors is what they are at the end
    name_what_is_written(graph)
    _free_examples(graph)
    for node in reversed(list(graph.nodes)):
        if name_of(node) in _UNCHANGED and not node.users:
            graph.erase_node(node)
    told: list[Fusion] = []
    for what, find in rewrites:
        gone = set[Node]()
        found = [_tried(what, find, graph, node, gone) for node in reversed(list(graph.nodes)) if node not in gone]
        names = {node.name for node in gone}  # what was missed there has been fused after all
        told += [fusion for fusion in reversed(found) if fusion is not None and fusion.at not in names]
    if not all(fusion.reason for fusion in told):
        graph.lint()
        module.recompile()
    return told


def _free_examples(graph: Graph) -> None:
    """Replace tensors that only give their shape by its numbers: then they are used by nobody else."""
    for node in graph.nodes:
        name, value = name_of(node), example_of(node)
        # One that is of a subclass has likes of its own.
        plain = type(value) is FakeTensor and value.layout is torch.strided
        if not plain or not all(isinstance(size, int) for size in value.shape):
            continue
        shape = tuple(value.shape)
        if node.op == "call_method" and name in ("reshape_as", "expand_as"):
            node.target, node.args, node.kwargs = node.target.partition("_")[0], (source_of(node), shape), {}
        elif name in ("zeros_like", "ones_like", "full_like") and value.is_contiguous():
            options = {each: node.kwargs[each] for each in ("fill_value", "requires_grad") if each in node.kwargs}
            node.op, node.target, node.args = "call_function", getattr(torch, name[:-5]), (shape, *node.args[1:])
            node.kwargs = {**options, "dtype": value.dtype, "device": value.device}


def _tried(what: str, find: _Find, graph: Graph, node: Node, gone: set[Node]) -> Fusion | None:
    """Do a rewrite that ends at a node, and note the nodes that go; return what there is to report, if anything."""
    where = _place(node)
    try:
        match = find(node)
        if match is None:
            return None
        check(graph, match)
        inserted = _exchanged(graph, match, gone)
        return Fusion(what, where, inserted.pattern, inserted.sizes, inserted.saved)
    except Miss as miss:
        return Fusion(what, where, reason=miss.reason, at=str(miss.node)) if miss.reason else None
    except Exception as error:  # whatever goes wrong here, the program runs as it would without
        return Fusion(what, where, reason="unknown", at=f"{node}: {error!r}")


def _exchanged(graph: Graph, match: Match, gone: set[Node]) -> Inserted:
    """Put in what stands for a match, and take away what nobody needs any more.

    Raises:
        Miss: it can't be done after all. Then the graph is as it was.
    """
    before = set(graph.nodes)
    try:
        with graph.inserting_before(_first_need(graph, match)):
            inserted = match.insert(graph)
        _try([node for node in graph.nodes if node not in before], inserted, match)
        results = {old: _as_it_lay(graph, old, new) for old, new in inserted.results.items()}
    except Exception:
        for node in reversed(graph.nodes):
            if node not in before:
                graph.erase_node(node)
        raise
    for old, new in results.items():
        new.meta = old.meta | new.meta
        old.replace_all_uses_with(new)
    copies = [node for read in match.reads for node in read.copies]
    doomed = {*match.outputs, *inserted.results, *match.inner, *copies}
    for node in reversed(list(graph.nodes)):
        if node in doomed and not node.users:
            graph.erase_node(node)
            gone.add(node)
    return inserted


def _as_it_lay(graph: Graph, old: Node, new: Node) -> Node:
    """Return a result without gaps if the program's is; else raise :class:`Miss` if a user relies on gaps."""
    if example_of(old).is_contiguous():
        with graph.inserting_after(new):
            result = graph.call_method("contiguous", (new,))
        result.meta["example_value"] = example_of(new).contiguous()
        return result
    memory = storages_of(old)
    views = [node for node in graph.nodes if node is not old and storages_of(node) & memory]
    plain = [node for node in views if node.op == "call_method" and node.target in ("view", "view_as")]
    if any(name_of(node) == "as_strided" or dtype_of(node) not in (None, dtype_of(old)) for node in views):
        raise Miss("unsupported option", old)
    if plain and is_written(old):
        raise Miss("mutation", old)
    for node in plain:
        node.target = "reshape" if node.target == "view" else "reshape_as"
    return new


def _first_need(graph: Graph, match: Match) -> Node:
    """Return the node before which the results of a match have to be there."""
    outputs, order = match.outputs, {node: at for at, node in enumerate(graph.nodes)}
    within = {*match.inner, *outputs}
    users = [user for output in outputs for user in output.users if user not in within]
    first = min([match.node, *users], key=order.__getitem__)
    if any(order[read.node] >= order[first] for read in match.reads):
        raise Miss("value used elsewhere", first)
    return first


def _try(nodes: Sequence[Node], inserted: Inserted, match: Match) -> None:
    """Run what was inserted on the examples of the graph's tensors; raise :class:`Miss` unless results are alike."""
    wanted = example_of(match.node)
    try:
        with getattr(wanted, "fake_mode", None) or nullcontext():
            for node in nodes:
                given, options = fx.node.map_arg((node.args, node.kwargs), example_of)
                node.meta["example_value"] = called(node, given, options)
    except (EinsumError, RuntimeError) as error:
        raise Miss("unsupported option", match.node) from error
    for old, new in inserted.results.items():
        wanted, made = example_of(old), example_of(new)
        alike = made.dtype == wanted.dtype and made.dim() == wanted.dim()
        if not alike or not all(map(same_size, made.shape, wanted.shape)):
            raise Miss("different numel", old)


def _place(node: Node) -> str:
    places = _PLACE.findall(node.stack_trace or "")
    return f"{places[-1][0]}:{places[-1][1]}" if places else ""
