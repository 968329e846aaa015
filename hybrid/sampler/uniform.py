"""Counter-based random numbers: a draw is a pure function of its coordinates.

No generator lives between steps, so there is no state that batching, preemption or a
neighbour could advance. Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy
as 1, 2, 3", 2011) as numpy has it; its raw stream is part of numpy's promise of
compatibility, the ``Generator`` methods above it are not.
"""

from typing import Final

from numpy.random import Philox

_WORD_BITS: Final = 64
_WORD_MASK: Final = 2**64 - 1
_MANTISSA_BITS: Final = 53
# The second key word: draws use the sample index (below 1024), seeds use this.
_SEED_STREAM: Final = _WORD_MASK


def uniform(seed: int, output_position: int, sample_index: int) -> float:
    """The number in [0, 1) of one draw: a multiple of 2**-53.

    Args:
        seed: the request's, 0 to 2**64-1.
        output_position: tokens that the sequence has drawn before this one.
        sample_index: which of the request's samples.
    """
    word = _philox_word(seed, sample_index, output_position)
    return (word >> (_WORD_BITS - _MANTISSA_BITS)) * 2.0**-_MANTISSA_BITS


def derive_seed(engine_seed: int, arrival_index: int) -> int:
    """A seed, 0 to 2**64-1, for the request that came as number ``arrival_index``.

    Args:
        engine_seed: any integer; its low 64 bits count.
        arrival_index: how many requests came before.
    """
    return _philox_word(engine_seed & _WORD_MASK, _SEED_STREAM, arrival_index)


def _philox_word(key_low: int, key_high: int, counter: int) -> int:
    # The lowest counter word stays 0: it is the one that numpy itself counts up.
    generator = Philox(
        key=key_high << _WORD_BITS | key_low, counter=counter << _WORD_BITS
    )
    return int(generator.random_raw())
