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
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

_IDLE = 120.0
"""Seconds without work after which the server ends."""

_MOST = 8
"""Pieces of work at a time, and no more than half of the processors that each of a machine's ranks has."""

_forked = False


def available() -> bool:
    """Return whether work can be done elsewhere."""
    return hasattr(os, "fork") and bool(sys.executable) and not _forked


def submit(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Have a function called in another process. This may block while much is submitted: call it from a thread."""
    return _server.submit(pickle.dumps((function, arguments)))


class _Server:
    """The server as the program sees it: both send pairs, of a number and what is pickled."""

    def __init__(self, most: int = 0) -> None:
        self._lock = threading.Lock()
        self._most = most
        self._process: subprocess.Popen[bytes] | None = None
        self._commands: Connection | None = None
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers = itertools.count()

    def submit(self, work: bytes) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            try:
                commands = self._commands = self._commands or self._started()
                self._waiting[number] = future
                commands.send((number, work))
            except OSError as error:  # no such program, or it has just ended
                self._waiting.pop(number, None)
                future.set_exception(error)
        return future

    def _started(self) -> Connection:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EINOPS_FAST_METRICS")}
        # It works for devices that it mustn't touch.
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
        environment["CUDA_VISIBLE_DEVICES"] = ""
        (theirs, commands), (answers, there) = Pipe(duplex=False), Pipe(duplex=False)
        pipes, nowhere = (theirs.fileno(), there.fileno()), subprocess.DEVNULL
        command = [sys.executable, "-c", f"from {__name__} import serve; serve({self._most}, {pipes})"]
        with theirs, there:
            self._process = subprocess.Popen(
                command, stdin=nowhere, stdout=nowhere, stderr=nowhere, env=environment, pass_fds=pipes
            )
        threading.Thread(target=self._receive, args=(self._process, commands, answers), daemon=True).start()
        return commands

    def _receive(self, process: subprocess.Popen[bytes], commands: Connection, answers: Connection) -> None:
        with answers, suppress(OSError, EOFError):
            while True:
                number, answer = answers.recv()
                _settle(self._waiting.pop(number), answer)
        with self._lock:
            if self._commands is commands:
                self._commands = None
            lost, self._waiting = self._waiting, {}
        for future in lost.values():
            future.set_exception(RuntimeError("the process that should have done this has ended"))
        process.wait()

    def stop(self) -> None:
        process, commands = self._process, self._commands
        if process is not None and commands is not None:
            commands.close()
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


def serve(most: int, pipes: tuple[int, int]) -> None:
    """Do what comes by a pipe until that ends, ``most`` pieces at a time; 0: as many as are spare."""
    commands, answers = Connection(pipes[0], writable=False), Connection(pipes[1], readable=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what a user stops is the program
    with suppress(OSError):
        os.nice(10)
    most, queue = most or _at_a_time(), deque[tuple[int, bytes]]()
    running: dict[Any, _Piece] = {}
    try:
        while ready := wait([commands, *running], None if running else _IDLE):
            for pipe in ready:
                if pipe in running:
                    piece = running.pop(pipe)
                    answers.send((piece.number, piece.answer()))
                else:
                    queue.append(commands.recv())
                    with suppress(Exception):  # its fork says what is wrong
                        pickle.loads(queue[-1][1])  # whatever it needs is imported here, once for all that follow
            while queue and len(running) < most:
                piece = _Piece(*queue.popleft())
                running[piece.pipe] = piece
    except (EOFError, OSError):  # the program has ended
        for piece in running.values():
            # With the compilers that it has started.
            with suppress(ProcessLookupError):
                os.killpg(piece.pid, signal.SIGKILL)


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _at_a_time() -> int:
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(_MOST, max(processors() // (2 * max(int(ranks), 1) if ranks.isdecimal() else 2), 1))


class _Piece:
    """A piece of work that is done in a fork of the server, which hears of its end by a pipe."""

    def __init__(self, number: int, work: bytes) -> None:
        self.number = number
        self.pipe, theirs = Pipe(duplex=False)
        self.pid = os.fork()
        if self.pid:
            theirs.close()
            return
        os.setpgid(0, 0)
        try:
            try:
                function, arguments = pickle.loads(work)
                answer = pickle.dumps((True, function(*arguments)))
            except BaseException as error:  # whatever it is, the program is told
                answer = pickle.dumps((False, f"{type(error).__name__}: {error}"))
            theirs.send_bytes(answer)
        finally:
            os._exit(0)

    def answer(self) -> bytes:
        """Return what it has answered, as soon as there is something to read."""
        with self.pipe:
            try:
                answer = self.pipe.recv_bytes()
            except EOFError:
                answer = pickle.dumps((False, "the process that should have done this has died"))
        os.waitpid(self.pid, 0)
        return answer
