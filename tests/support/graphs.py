"""Calls captured in a CUDA graph."""

from collections.abc import Callable
from typing import Any

import torch


def captured(call: Callable[[], Any], warm_up: int = 2) -> tuple[Any, Any]:
    """What a call returned while it was captured, and the graph, which replays it.

    Some calls on another stream come before, as torch's documentation has it.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm_up):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return result, graph
