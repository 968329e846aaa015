"""Imports of libraries that are there or not, and sound or not."""

from importlib import import_module
from typing import Any

from hybrid.scheduler.errors import UnsupportedFeature


def import_library(name: str) -> Any:
    """Import a module of an optional library.

    Raises:
        UnsupportedFeature: it is not there, or its import failed; says how.
    """
    try:
        return import_module(name)
    except Exception as error:
        # Compiled libraries raise whatever they like: of a missing driver, of MPI.
        raise UnsupportedFeature(
            f"{name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
