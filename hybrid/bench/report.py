"""All that a benchmark found out, for programs."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .engine_process import EngineFacts
from .machine import Machine
from .measurement import Measurement

REPORT_VERSION: Final = 1
"""Rises when a field's meaning changes or one goes; docs/cli.md describes them."""


@dataclass(frozen=True, slots=True)
class Report:
    """One run of ``hybrid bench``."""

    created: str
    """ISO 8601, UTC."""
    machine: Machine
    options: Mapping[str, Any]
    """Keywords of ``EngineConfig`` that all engines had."""
    num_rounds: int
    engines: Mapping[str, EngineFacts]
    """By label, in the order in which they took turns."""
    measurements: tuple[Measurement, ...]
    """Every workload on every engine."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"version": REPORT_VERSION, **dataclasses.asdict(self)}

    def as_json(self) -> str:
        """Return the text of results.json."""
        return json.dumps(self.as_dict(), indent=2, default=str) + "\n"

    def write(self, path: Path) -> None:
        """Write results.json.

        Raises:
            OSError: it cannot be written.
        """
        path.write_text(self.as_json(), encoding="utf-8")
