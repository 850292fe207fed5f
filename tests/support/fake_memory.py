"""The memory of a framework on a GPU that isn't there, for tests of what is chosen by measurement."""

from contextlib import nullcontext
from typing import Any

from einops_fast.backends.memory import Memory


class FakeMemory(Memory):
    """One device, on which nothing is stored; whoever derives from it says what takes how long.

    Attributes:
        captured: a graph is being captured, so that nothing may be measured.
        measured: names of what was.
        settings: of the library.
    """

    def __init__(self) -> None:
        super().__init__()
        self.captured = False
        self.measured: list[str] = []
        self.settings: dict[str, str] = {}

    def empty(self, like: Any, shape: Any, strides: Any) -> Any:
        raise AssertionError

    def workspace(self, like: Any, elements: int, dtype: str) -> Any:
        raise AssertionError

    def layout(self, array: Any) -> Any:
        return (), ()

    def sample(self, device: int, dtype: str, shape: Any, strides: Any) -> Any:
        return "sample"

    def stopwatch(self) -> Any:
        raise AssertionError

    def pointer(self, array: Any) -> int:
        return 0

    def device(self, array: Any) -> int:
        return 0

    def current_device(self) -> int:
        return 0

    def on_device(self, device: int) -> Any:
        return nullcontext()

    def stream(self, device: int) -> int:
        return 0

    def dtype(self, array: Any) -> str:
        return "float16"

    def device_name(self, device: int) -> str:
        return "NVIDIA H200"

    def versions(self) -> dict[str, str]:
        return {"framework": "1"}

    def library_settings(self, dtype: str) -> dict[str, str]:
        return self.settings

    def capturing(self) -> bool:
        return self.captured

    def synchronize(self, device):
        pass

    def may_measure(self) -> bool:
        return not self.captured
