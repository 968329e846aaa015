"""Whether products with many rows may use copies of four-bit weights in eight bits.

They are faster, but another rounding: what a request gets then depends on how many rows
were computed beside its own.
"""

from typing import Final

from hybrid.backends.free_memory import free_host_memory_bytes

from .abi import Format
from .build_options import AUTO
from .engine_directory import BuiltEngine

YES: Final = "yes"
NO: Final = "no"
BATCH_INVARIANT: Final = (YES, NO)
_LEAST_FREE: Final = 4
"""Memory that is free, over what the copies take."""
_FASTER: Final = ("avx512", "avx512_bf16")
"""Instruction sets in which there is something to be gained."""


def is_batch_invariant(engine: BuiltEngine, asked: str, variant: str) -> bool:
    """Decide.

    Args:
        engine: only one with four-bit weights has a choice.
        asked: ``yes``; ``no``; ``auto``: no where it is faster and memory for the
            copies is no concern.
        variant: the instruction set that runs.
    """
    if asked != AUTO:
        return asked == YES
    if variant not in _FASTER:
        return True
    num_weights = sum(
        weight.rows * weight.columns
        for weight in engine.weights
        if weight.format is Format.INT4
    )
    return _LEAST_FREE * num_weights > free_host_memory_bytes()
