"""How an engine is built: what its weights become, and what its cache holds."""

from dataclasses import dataclass
from typing import Final

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.shown_value import shown

AUTO: Final = "auto"
QUANTIZATIONS: Final = ("int8", "int4", "bf16", "fp32")
KV_CACHE_DTYPES: Final = ("float32", "bfloat16", "int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What was asked for.

    Raises:
        ConfigError: a value is none of those there are.
    """

    quantization: str = AUTO
    """``auto``: fp32 to compute in float32, else the four bits of a file whose matrices
    have four, else int8."""
    kv_cache_dtype: str = AUTO
    """``auto``: as wide as the weights; int8 beside int4, too."""
    dtype: str = "bfloat16"
    """What the engine computes in, where ``auto`` leaves that open."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("quantization", self.quantization, QUANTIZATIONS),
            ("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES),
        ):
            if value not in (AUTO, *known):
                raise ConfigError(
                    f"{name} is {shown(value)}, must be {AUTO} or one of "
                    f"{', '.join(known)}"
                )

    @property
    def asked_quantization(self) -> str:
        """``auto`` only where the model's file decides."""
        if self.quantization == AUTO and self.dtype == "float32":
            return "fp32"
        return self.quantization

    def settled_kv_cache_dtype(self, quantization: str) -> str:
        """What the cache of an engine with these weights holds."""
        if self.kv_cache_dtype != AUTO:
            return self.kv_cache_dtype
        return {"fp32": "float32", "bf16": "bfloat16"}.get(quantization, "int8")
