"""Profiles of the engine's thread: what Python does in its steps, and for how long.

Compiled kernels show as the one call that starts them.
"""

import asyncio
import cProfile
import time
from pathlib import Path
from typing import Final

from hybrid.async_engine import AsyncHybridEngine
from hybrid.scheduler import InvalidRequest
from hybrid.scheduler.shown_value import shown


class EngineProfiler:
    """Takes one profile at a time; writes within one directory."""

    def __init__(self, engine: AsyncHybridEngine, directory: Path) -> None:
        self._engine: Final = engine
        self._directory: Final = directory
        self._running: tuple[cProfile.Profile, Path] | None = None

    async def start(self, output_dir: str | None) -> bool:
        """Begin before the next step; ``False`` if one is being taken.

        Args:
            output_dir: where the profile goes, within the directory; ``None``: there.

        Raises:
            InvalidRequest: it is elsewhere.
            EngineClosed: the engine has ended.
        """
        folder = self._folder(output_dir)
        if self._running is not None:
            return False
        profile = cProfile.Profile()
        self._running = profile, folder
        try:
            await self._engine.call(profile.enable)
        except BaseException:
            self._running = None
            raise
        return True

    async def stop(self) -> Path | None:
        """End and write it: a file for ``pstats``; ``None`` if none is being taken.

        Raises:
            EngineClosed: the engine has ended.
            OSError: it cannot be written.
        """
        if self._running is None:
            return None
        (profile, folder), self._running = self._running, None
        await self._engine.call(profile.disable)
        path = folder / time.strftime("hybrid-%Y%m%d-%H%M%S.prof")
        await asyncio.to_thread(_write, profile, path)
        return path

    def _folder(self, output_dir: str | None) -> Path:
        """Whoever reaches the server must not write where they like."""
        root = self._directory.resolve()
        folder = (root / (output_dir or "")).resolve()
        if not folder.is_relative_to(root):
            raise InvalidRequest(
                f"output_dir is {shown(output_dir)}, must be within {root}",
                field="output_dir",
                value=output_dir,
            )
        return folder


def _write(profile: cProfile.Profile, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    profile.dump_stats(path)
