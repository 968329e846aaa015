"""What can be chosen: how weights are stored, and OpenVINO's own properties."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hybrid.api import ConfigError, ExecutorConfig

WEIGHTS: Final = ("auto", "f32", "bf16", "int8", "int4")
DEFAULT_GROUP_SIZE: Final = 64
PRECISIONS: Final = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
"""OpenVINO's names of the engine's dtypes."""
PRECISION_HINT: Final = "INFERENCE_PRECISION_HINT"
KV_PRECISION: Final = "KV_CACHE_PRECISION"
_OWN: Final = {
    "weights": f"one of {', '.join(WEIGHTS)}",
    "int4_group_size": f"numbers that share a scale, default {DEFAULT_GROUP_SIZE}",
}


@dataclass(frozen=True, slots=True)
class OpenVINOOptions:
    """Checked options of one executor."""

    weights: str
    """How a checkpoint's weights are stored: ``f32``, ``bf16``, ``int8``, ``int4``."""
    int4_group_size: int
    properties: Mapping[str, Any]
    """What ``compile_model`` gets."""


def parse_options(
    config: ExecutorConfig, known_properties: Mapping[str, str]
) -> OpenVINOOptions:
    """Check an executor's options.

    Args:
        config: dtype, threads and options.
        known_properties: the device's, by name: ``RW`` or ``RO``.

    Raises:
        ConfigError: an option is unknown or its value impossible.
    """
    options = dict(config.options)
    weights = options.pop("weights", "auto")
    if weights not in WEIGHTS:
        raise ConfigError(
            f"executor openvino: weights is {weights!r}, must be {_OWN['weights']}"
        )
    group_size = options.pop("int4_group_size", DEFAULT_GROUP_SIZE)
    if type(group_size) is not int or group_size < 1:
        raise ConfigError(
            f"executor openvino: int4_group_size is {group_size!r}, must be a whole "
            "number from 1"
        )
    _refuse_unknown(options, known_properties)
    precision = PRECISIONS[config.dtype]
    if weights == "auto":
        weights = "bf16" if precision == "bf16" else "f32"
    # The cache is in the dtype that was chosen, as everywhere in the engine. OpenVINO's
    # own default is u8: half the memory, less exact, slower to read (5 % seen).
    hint = options.get(PRECISION_HINT, precision)
    properties: dict[str, Any] = {PRECISION_HINT: hint, KV_PRECISION: hint}
    if config.num_threads is not None:
        properties["INFERENCE_NUM_THREADS"] = config.num_threads
    return OpenVINOOptions(weights, group_size, properties | options)


def _refuse_unknown(options: Mapping[str, Any], known: Mapping[str, str]) -> None:
    writable = sorted(name for name, access in known.items() if access == "RW")
    for name in options:
        if name not in writable:
            own = ", ".join(f"{key} ({value})" for key, value in _OWN.items())
            raise ConfigError(
                f"executor openvino: unknown option {name!r}; it has {own}, and "
                f"OpenVINO's properties {', '.join(writable)}"
            )
