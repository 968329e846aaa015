"""The options of executor ``cpu``, checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.shown_value import shown

from .build_options import AUTO, KV_CACHE_DTYPES, QUANTIZATIONS, BuildOptions
from .weight_copies import BATCH_INVARIANT
from .weight_pages import WEIGHT_PAGES

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "quantization": (AUTO, *QUANTIZATIONS),
    "kv_cache_dtype": (AUTO, *KV_CACHE_DTYPES),
    "implementation": (AUTO, "native", "onednn", "torch"),
    "weight_pages": (AUTO, *WEIGHT_PAGES),
    "batch_invariant": (AUTO, *BATCH_INVARIANT),
}
"""By option, the values that it takes."""


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """As ``executor_options`` or ``--executor-option`` give them."""

    quantization: str = AUTO
    """Of the weights; ``auto``: none in float32, else 4 bits where the model's file has
    them, else 8."""
    kv_cache_dtype: str = AUTO
    """Of the cache; ``auto``: as wide as the weights, int8 beside 4 bits, too."""
    implementation: str = AUTO
    """Who computes; ``auto``: the first that can."""
    weight_pages: str = AUTO
    """Where the kernels' weights lie; ``auto``: in huge pages where there are any and
    memory is no concern."""
    batch_invariant: str = AUTO
    """Whether the same request gives the same bits in any company; ``auto``: not with
    four-bit weights, where that is faster and memory is no concern."""

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "CpuOptions":
        """Check what was given.

        Raises:
            ConfigError: an option is unknown or its value is none of those it takes.
        """
        for name, value in given.items():
            if name not in CHOICES:
                raise ConfigError(
                    f"executor cpu: unknown option {name!r}; it has "
                    f"{', '.join(CHOICES)}"
                )
            if value not in CHOICES[name]:
                raise ConfigError(
                    f"executor cpu: {name} is {shown(value)}, must be one of "
                    f"{', '.join(CHOICES[name])}"
                )
        return cls(**given)

    def build_options(self, dtype: str) -> BuildOptions:
        """Say what an engine is to be built with.

        Args:
            dtype: what is computed in, which ``auto`` goes by.
        """
        return BuildOptions(
            quantization=self.quantization,
            kv_cache_dtype=self.kv_cache_dtype,
            dtype=dtype,
        )
