"""A check of a machine: runs alone, ends in one row of a table, whatever happens."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hybrid.failure_reason import failure_reason

NAME_WIDTH = 28
RESULT_WIDTH = 30


@dataclass(frozen=True, slots=True)
class Setting:
    """Where checks run."""

    device: str
    """``cuda`` or ``cpu``."""
    folder: Path
    """For models, written by the first check that needs one."""

    def need_cuda(self) -> None:
        """Skip what says nothing on a CPU."""
        if self.device != "cuda":
            pytest.skip("no CUDA device")


Check = Callable[[Setting], str]
"""Returns its numbers; skips by ``pytest.skip``, fails by raising anything else."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    result: str
    """``ok``, ``failed: why`` or ``skipped: why``."""
    numbers: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether the script must end with an error."""
        return self.result.startswith("failed")

    def __str__(self) -> str:
        return f"{self.name:{NAME_WIDTH}}{self.result:{RESULT_WIDTH}}{self.numbers}"


def run_check(name: str, check: Check, setting: Setting) -> Row:
    """Turn whatever a check does into a row."""
    try:
        return Row(name, "ok", check(setting))
    except pytest.skip.Exception as reason:
        return Row(name, f"skipped: {reason.msg}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - it costs its own row
        return Row(name, f"failed: {failure_reason(error)}")
