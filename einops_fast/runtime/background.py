"""Work in other processes, so that no call waits for it: a server with a low priority forks one for each piece.

The server is started with the first piece of work. It has nothing of the program but its ``sys.path``, and ends with
the program, however that ends, or when it has had nothing to do for a while. A process that was forked from the program
has no server: what loads data gets no compilers beside it.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import IO, Any

__all__ = ["available", "processors", "submit", "take_all_processors"]

_IDLE = 120.0
"""Seconds without work after which the server ends."""

_MOST = 8
"""Pieces of work at a time, and no more than half of the processors that each of a machine's ranks has."""

_HEAD = struct.Struct("<QQ")
"""Of a message: its number, and bytes of what follows."""

_forked = False


def available() -> bool:
    """Return whether work can be done elsewhere."""
    return hasattr(os, "fork") and bool(sys.executable) and not _forked


def submit(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Have a function called in another process. This may block while much is submitted: call it from a thread.

    Args:
        function: of a module's, which the server imports.
        arguments: what can be pickled, as its result.

    Returns:
        What will have the result; whatever goes wrong is its exception.
    """
    return _server.submit(pickle.dumps((function, arguments)))


class _Server:
    """The server as the program sees it."""

    def __init__(self, most: int = 0) -> None:
        self._lock = threading.Lock()
        self._most = most
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers = itertools.count()

    def submit(self, work: bytes) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            try:
                if self._process is None:
                    self._process = self._started()
                self._waiting[number] = future
                _write(self._process.stdin, number, work)
            except OSError as error:  # no such program, or it has just ended
                self._waiting.pop(number, None)
                future.set_exception(error)
        return future

    def _started(self) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EINOPS_FAST_METRICS")}
        # It works for devices that it mustn't touch.
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
        environment["CUDA_VISIBLE_DEVICES"] = ""
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        command = [sys.executable, "-c", f"from {__name__} import serve; serve({self._most})"]
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, env=environment)
        threading.Thread(target=self._receive, args=(process,), daemon=True).start()
        return process

    def _receive(self, process: subprocess.Popen[bytes]) -> None:
        while (found := _read(process.stdout)) is not None:
            number, answer = found
            future = self._waiting.pop(number, None)
            if future is not None:
                _settle(future, answer)
        with self._lock:
            if self._process is process:
                self._process = None
            lost, self._waiting = self._waiting, {}
        for future in lost.values():
            future.set_exception(RuntimeError("the process that should have done this has ended"))
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def stop(self) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)


def take_all_processors() -> None:
    """Do as much at a time from now on as there are processors, for a program that does nothing else meanwhile."""
    global _server
    _server.stop()
    _server = _Server(processors())


_server = _Server()
atexit.register(lambda: _server.stop())


def _in_fork() -> None:
    global _forked, _server
    _forked, _server = True, _Server()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_fork)


def _settle(future: Future[Any], answer: bytes) -> None:
    try:
        fine, value = pickle.loads(answer)
    except Exception as error:  # what another process has pickled needn't be known here
        fine, value = False, error
    if fine:
        future.set_result(value)
    else:
        future.set_exception(value if isinstance(value, BaseException) else RuntimeError(value))


def _write(stream: IO[bytes] | None, number: int, content: bytes) -> None:
    assert stream is not None
    stream.write(_HEAD.pack(number, len(content)) + content)
    stream.flush()


def _read(stream: IO[bytes] | None) -> tuple[int, bytes] | None:
    """Return the next message and its number; ``None`` where there are no more."""
    assert stream is not None
    with suppress(OSError, ValueError, EOFError):
        number, length = _HEAD.unpack(_exactly(stream, _HEAD.size))
        return number, _exactly(stream, length)
    return None


def _exactly(stream: IO[bytes], length: int) -> bytes:
    content = b""
    while len(content) < length:
        more = stream.read(length - len(content))
        if not more:
            raise EOFError
        content += more
    return content


def serve(most: int = 0) -> None:
    """Do what comes by the standard input until that ends, ``most`` pieces at a time; 0: as many as are spare."""
    # What a piece of work prints mustn't get among the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what a user stops is the program
    with suppress(OSError):
        os.nice(10)
    most, queue = most or _at_a_time(), deque[tuple[int, Callable[[], Any]]]()
    with os.fdopen(0, "rb", buffering=0) as commands, selectors.DefaultSelector() as selector:
        selector.register(commands, selectors.EVENT_READ)
        running: dict[int, _Piece] = {}
        while True:
            while queue and len(running) < most:
                piece = _Piece(*queue.popleft())
                running[piece.pipe] = piece
                selector.register(piece.pipe, selectors.EVENT_READ)
            events = selector.select(None if running else _IDLE)
            goes_on = bool(events)
            for key, _ in events:
                if key.fileobj is not commands:
                    piece = running[key.fd]
                    if piece.read_on():
                        # Forks have the pipe, too: a selector that is told by the system forgets it only if told so.
                        selector.unregister(key.fd)
                        del running[key.fd]
                        _write(answers, piece.number, piece.answer())
                elif (found := _read(commands)) is None:
                    goes_on = False
                else:
                    queue.append((found[0], _read_work(found[1])))
            if not goes_on:
                for piece in running.values():
                    # With the compilers that it has started.
                    with suppress(ProcessLookupError):
                        os.killpg(piece.pid, signal.SIGKILL)
                return


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _at_a_time() -> int:
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(_MOST, max(processors() // (2 * max(int(ranks), 1) if ranks.isdecimal() else 2), 1))


def _read_work(work: bytes) -> Callable[[], Any]:
    """Return the call that was submitted, or one that says why it can't be made here."""
    try:
        # Whatever it needs is imported here, once for all that follow.
        function, arguments = pickle.loads(work)
    except Exception as error:
        return partial(_raise, f"{type(error).__name__}: {error}")
    return partial(function, *arguments)


def _raise(message: str) -> None:
    raise RuntimeError(message)


class _Piece:
    """A piece of work that is done in a fork of the server."""

    def __init__(self, number: int, call: Callable[[], Any]) -> None:
        self.number, self._content = number, b""
        self.pipe, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(theirs)
            return
        os.setpgid(0, 0)
        try:
            try:
                answer = pickle.dumps((True, call()))
            except BaseException as error:  # whatever it is, the program is told
                answer = pickle.dumps((False, f"{type(error).__name__}: {error}"))
            with os.fdopen(theirs, "wb") as stream:
                stream.write(answer)
        finally:
            os._exit(0)

    def read_on(self) -> bool:
        """Read what it has answered since; return whether that was all."""
        more = os.read(self.pipe, 1 << 16)
        self._content += more
        return not more

    def answer(self) -> bytes:
        """Return what it has answered, after all is read."""
        os.close(self.pipe)
        os.waitpid(self.pid, 0)
        return self._content or pickle.dumps((False, "the process that should have done this has died"))
