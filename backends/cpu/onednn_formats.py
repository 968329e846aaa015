"""In what the oneDNN fallback keeps weights and cache, and in what it computes."""

from dataclasses import dataclass
from typing import Final

from hybrid.scheduler.errors import ConfigError, UnsupportedFeature

from .build_options import AUTO
from .options import CpuOptions

_DTYPES: Final = ("float32", "bfloat16")
_LOADED: Final = {"fp32": "float32", "bf16": "bfloat16"}
"""By unquantised weights, how they are loaded."""


@dataclass(frozen=True, slots=True)
class OneDNNFormats:
    """What the options come to where no kernel of ours is."""

    weights: str
    """``int8``, ``bf16`` or ``fp32``."""
    loaded: str
    """Dtype in which the weights come out of the file, by torch's name."""
    cache: str
    """Dtype of K and V, by torch's name; attention computes in it."""

    @classmethod
    def of(cls, dtype: str, options: CpuOptions) -> "OneDNNFormats":
        """Resolve what was asked for.

        Args:
            dtype: the engine's, never ``auto``.
            options: the executor's.

        Raises:
            UnsupportedFeature: nothing is computed in this dtype.
            ConfigError: an option needs the compiled kernels.
        """
        if dtype not in _DTYPES:
            raise UnsupportedFeature(
                f"oneDNN's products come in {' and '.join(_DTYPES)}, dtype is {dtype}"
            )
        weights, cache = options.quantization, options.kv_cache_dtype
        if weights == "int4":
            raise _needs_kernels("quantization", weights, "int8, bf16 or fp32")
        if cache == "int8":
            raise _needs_kernels("kv_cache_dtype", cache, "float32 or bfloat16")
        if weights == AUTO:
            weights = "fp32" if dtype == "float32" else "int8"
        if cache == AUTO:
            cache = "float32" if weights == "fp32" else "bfloat16"
        return cls(weights, _LOADED.get(weights, dtype), cache)


def _needs_kernels(option: str, value: str, instead: str) -> ConfigError:
    return ConfigError(
        f"executor cpu: {option} is {value}, which needs the compiled kernels "
        f"(`hybrid executors --explain` says why there are none); without them it must "
        f"be {instead}"
    )
