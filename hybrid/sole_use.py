"""Keeps a second thread out of what one alone may use at a time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hybrid.scheduler.errors import UnsupportedFeature


class SoleUse:
    """One call at a time is in; a newcomer is refused, not queued.

    Who was refused has changed nothing for who is in.
    """

    def __init__(self, refusal: str) -> None:
        """Begin with nobody in.

        Args:
            refusal: what a newcomer is told.
        """
        self._refusal: Final = refusal
        self._lock: Final = threading.Lock()
        self._owner: int | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Go in.

        Raises:
            UnsupportedFeature: another call is in.
        """
        if not self._lock.acquire(blocking=False):
            raise UnsupportedFeature(self._refusal)
        with self._held():
            yield

    @contextmanager
    def continued(self) -> Iterator[None]:
        """Go in as one who was in before: waits until whoever came between is out.

        Raises:
            UnsupportedFeature: that is this thread itself, which would wait forever.
        """
        if self._owner == threading.get_ident():
            raise UnsupportedFeature(self._refusal)
        self._lock.acquire()
        with self._held():
            yield

    @contextmanager
    def if_free(self) -> Iterator[bool]:
        """Go in, unless another call is; whether it worked."""
        if not self._lock.acquire(blocking=False):
            yield False
            return
        with self._held():
            yield True

    @contextmanager
    def _held(self) -> Iterator[None]:
        self._owner = threading.get_ident()
        try:
            yield
        finally:
            self._owner = None
            self._lock.release()
