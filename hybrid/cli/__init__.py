"""The ``hybrid`` command. Imports no engine: that happens when a command runs."""

from .entry import main, run

__all__ = ["main", "run"]
