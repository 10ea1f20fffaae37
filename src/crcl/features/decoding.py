"""Decoding and preparing images in worker processes, with results in the order of the images.

Workers are processes of their own, which read from and answer through pipes: they end when this process does, however
it ends, and nothing of the calling program runs in them.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crcl.data.images import decode, pixel_hash
from crcl.data.pictures.base import UnusableError
from crcl.errors import TrainingError

Prepare = Callable[[Image.Image], NDArray[np.float32]]
Prepared = tuple[bytes, NDArray[np.float32]]
"""The hash of an image's pixels, and what the extractor's model reads of it."""

FEW, MOST = 256, 4
"""Fewer images are decoded without workers, which take seconds to start; and the most workers by default."""
_AHEAD = 4  # images per worker that are read before their turn
_PROGRAM = "from crcl.features.decoding import serve; serve()"


def usual_workers(images: int) -> int:
    """The default number of worker processes for so many images."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if images < FEW or not sys.executable else min(cores, MOST)


def prepared(
    contents: Iterable[bytes | UnusableError],
    prepare: Prepare,
    *,
    most_pixels: int,
    workers: int = 0,
) -> Iterator[Prepared | UnusableError]:
    """The prepared images, or why they cannot be used, in the order of the given contents.

    Args:
        contents: Bytes of image files, or why they cannot be read.
        prepare: Turns a decoded image into what a model reads; pickled, if there are workers.
        most_pixels: Larger images cannot be used.
        workers: Worker processes; 0: this process decodes. The results do not depend on it.
    """
    if not workers:
        yield from (_prepare(content, prepare, most_pixels) for content in contents)
        return
    task = pickle.dumps((prepare, most_pixels))
    idle: SimpleQueue[_Worker] = SimpleQueue()
    members = [_Worker(task) for _ in range(workers)]
    for member in members:
        idle.put(member)

    def ask(content: bytes | UnusableError) -> Prepared | UnusableError:
        if isinstance(content, UnusableError):
            return content
        worker = idle.get()
        try:
            return worker.ask(content)
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(workers)
    ahead: deque[Future[Prepared | UnusableError]] = deque()
    try:
        for content in contents:
            ahead.append(pool.submit(ask, content))
            if len(ahead) > _AHEAD * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for member in members:
            member.closed = True
            member.end()
        pool.shutdown()


def _prepare(content: bytes | UnusableError, prepare: Prepare, most_pixels: int) -> Prepared | UnusableError:
    if isinstance(content, UnusableError):
        return content
    try:
        picture = decode(content, most_pixels=most_pixels)
        return pixel_hash(picture), prepare(picture)
    except UnusableError as reason:
        return reason


class _Worker:
    """A worker process; started when it is first asked, and again after it has died."""

    def __init__(self, task: bytes) -> None:
        self.task = task
        self.process: subprocess.Popen[bytes] | None = None
        self.closed = False

    def ask(self, content: bytes) -> Prepared | UnusableError:
        """Have one image prepared; an image at which two processes die cannot be used."""
        for _ in range(2):
            try:
                stdin, stdout = self._pipes()
                _send(stdin, content)
                answer = _receive(stdout)
            except (OSError, EOFError, pickle.UnpicklingError):
                self.end()
                continue
            if isinstance(answer, str):
                raise TrainingError(f"a worker process cannot prepare images: {answer}")
            found: Prepared | UnusableError = answer
            return found
        return UnusableError("its decoder crashed")

    def _pipes(self) -> tuple[BinaryIO, BinaryIO]:
        if self.closed:
            raise EOFError
        if self.process is None:
            path = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )
            assert self.process.stdin is not None
            self.process.stdin.write(len(self.task).to_bytes(8, "little") + self.task)
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        return stdin, stdout  # type: ignore[return-value]

    def end(self) -> None:
        """End the process, whatever it is doing."""
        process, self.process = self.process, None
        if process is None:
            return
        with suppress(OSError):
            process.kill()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        process.wait()


def _send(pipe: BinaryIO, message: Any) -> None:
    content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(len(content).to_bytes(8, "little"))
    pipe.write(content)
    pipe.flush()


def _receive(pipe: BinaryIO) -> Any:
    """The next message; raises EOFError if the other side has ended."""
    return pickle.loads(_receive_bytes(pipe))


def _receive_bytes(pipe: BinaryIO) -> bytes:
    size = pipe.read(8)
    content = pipe.read(int.from_bytes(size, "little")) if len(size) == 8 else b""
    if not content:
        raise EOFError
    return content


def serve() -> None:
    """What a worker process does: prepares each image that it is sent, until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not end up among the answers
    try:
        task = _receive_bytes(requests)
        try:
            prepare, most_pixels = pickle.loads(task)
        except Exception as error:
            _receive_bytes(requests)
            _send(answers, f"{type(error).__name__}: {error}")
            return
        while True:
            _send(answers, _answer(_receive(requests), prepare, most_pixels))
    except (EOFError, BrokenPipeError):
        return


def _answer(content: bytes, prepare: Prepare, most_pixels: int) -> Prepared | UnusableError | str:
    try:
        return _prepare(content, prepare, most_pixels)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
