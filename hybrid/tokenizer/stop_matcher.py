"""Finds stop strings in a text that comes in pieces; looks at a character once."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """A stop string that has come."""

    stop: str
    end: int
    """Characters of the piece up to and with its last one."""


class StopMatcher:
    """An Aho-Corasick automaton over characters.

    Its state is the longest end of the text so far that begins some stop string, which
    is exactly what must be held back. The first stop string to be complete wins; of
    several complete at the same character, the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Build the automaton; its size is the total length of ``stops``."""
        self._children: list[dict[str, int]] = [{}]
        self._depths = [0]
        self._matches: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._fallbacks = self._link()
        self._state = 0

    @property
    def num_held(self) -> int:
        """Characters at the end of the text that may become a stop string."""
        return self._depths[self._state]

    def scan(self, piece: str, *, may_match: bool = True) -> StopMatch | None:
        """Take in the next piece of text; the first match, if any, ends the scan.

        Args:
            piece: what follows the text so far.
            may_match: whether a stop string that is complete in this piece counts.
        """
        children, fallbacks = self._children, self._fallbacks
        state = self._state
        for index, character in enumerate(piece):
            while state and character not in children[state]:
                state = fallbacks[state]
            state = children[state].get(character, 0)
            match = self._matches[state]
            if match is not None and may_match:
                self._state = 0
                return StopMatch(match, index + 1)
            while state and not children[state]:
                # Complete but not counted: only what can still grow is held.
                state = fallbacks[state]
        self._state = state
        return None

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._children[state].get(character)
            if following is None:
                following = len(self._children)
                self._children[state][character] = following
                self._children.append({})
                self._depths.append(self._depths[state] + 1)
                self._matches.append(None)
            state = following
        self._matches[state] = stop

    def _link(self) -> list[int]:
        """For each state that of its longest proper end; breadth first."""
        fallbacks = [0] * len(self._children)
        states = deque(self._children[0].values())
        while states:
            state = states.popleft()
            if self._matches[state] is None:
                self._matches[state] = self._matches[fallbacks[state]]
            for character, following in self._children[state].items():
                states.append(following)
                fallback = fallbacks[state]
                while fallback and character not in self._children[fallback]:
                    fallback = fallbacks[fallback]
                fallbacks[following] = self._children[fallback].get(character, 0)
        return fallbacks
