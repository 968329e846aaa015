"""Which requests of the engine a client's request id stands for.

Clients choose their ids, and two may choose the same; the engine's are unique.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

from hybrid.input_processor import MAX_REQUEST_ID_CHARACTERS, check_request_id


class LiveRequests:
    """Used within the event loop only."""

    def __init__(self) -> None:
        self._engine_ids: Final[dict[str, set[str]]] = {}
        """By the client's id."""
        self._taken: Final[set[str]] = set()
        self._numbers: Final = count(2)

    @contextmanager
    def entered(self, client_id: str) -> Iterator[str]:
        """Hold an id of the engine for a request: the client's, if it is free.

        Raises:
            InvalidRequest: the client gave none, or one that is too long.
        """
        check_request_id(client_id)
        engine_id = client_id
        while engine_id in self._taken:
            engine_id = with_suffix(client_id, f"#{next(self._numbers)}")
        self._taken.add(engine_id)
        siblings = self._engine_ids.setdefault(client_id, set())
        siblings.add(engine_id)
        try:
            yield engine_id
        finally:
            self._taken.discard(engine_id)
            siblings.discard(engine_id)
            if not siblings:
                del self._engine_ids[client_id]

    def engine_ids(self, client_id: str) -> tuple[str, ...]:
        """All that run under a client's id; none if it is unknown."""
        return tuple(self._engine_ids.get(client_id, ()))


def with_suffix(client_id: str, suffix: str) -> str:
    """A name of ours after a client's, cut to what the engine takes."""
    return client_id[: MAX_REQUEST_ID_CHARACTERS - len(suffix)] + suffix
