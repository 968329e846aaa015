"""The names by which pluggy and the installed distributions find plugins."""

from typing import Final

import pluggy

PROJECT_NAME: Final = "hybrid"
ENTRY_POINT_GROUP: Final = "hybrid.plugins"
"""The entry-point group under which a distribution names its plugins."""

hookspec: Final = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl: Final = pluggy.HookimplMarker(PROJECT_NAME)
"""Marks a function as an implementation of the hook of its name."""
