"""Keeps this process's own way with signals through a test of a server."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def kept_signals() -> Iterator[None]:
    """Put the handlers back: a server leaves the signals to the kernel for good."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
