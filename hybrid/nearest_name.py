"""Suggests the known name that an unknown one was probably meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the closest known name, else nothing."""
    matches = get_close_matches(name, list(known), n=1, cutoff=0.65)
    return f"; did you mean {matches[0]!r}?" if matches else ""
