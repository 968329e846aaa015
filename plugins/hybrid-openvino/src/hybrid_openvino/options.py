"""What can be chosen: how weights are stored, and OpenVINO's own properties."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from hybrid.api import ConfigError, ExecutorConfig

WEIGHTS: Final = ("auto", "f32", "bf16", "int8", "int4")
DEFAULT_GROUP_SIZE: Final = 64
PRECISIONS: Final = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
"""OpenVINO's names of the engine's dtypes."""
PRECISION_HINT: Final = "INFERENCE_PRECISION_HINT"
KV_PRECISION: Final = "KV_CACHE_PRECISION"
NUM_THREADS: Final = "INFERENCE_NUM_THREADS"
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
    config: ExecutorConfig, known_properties: Mapping[str, str], *, is_compiled: bool
) -> OpenVINOOptions:
    """Check an executor's options.

    Args:
        config: dtype, threads and options.
        known_properties: the device's, by name: ``RW`` or ``RO``.
        is_compiled: whether the model is an IR, whose weights are stored already.

    Raises:
        ConfigError: an option is unknown, its value impossible, or without effect.
    """
    given = dict(config.options)
    own = {name: given.pop(name) for name in _OWN if name in given}
    _refuse_unknown(given, known_properties)
    if is_compiled and own:
        raise ConfigError(
            f"executor openvino: {min(own)} is {own[min(own)]!r}, but the model is an "
            "OpenVINO IR, whose weights are stored already; leave it out"
        )
    precision = PRECISIONS[config.dtype]
    weights = _weights(own, precision)
    hint = given.get(PRECISION_HINT, precision)
    if hint != precision:
        raise ConfigError(
            f"executor openvino: {PRECISION_HINT} is {hint!r}, dtype is "
            f"{config.dtype!r}; choose the precision by dtype ({', '.join(PRECISIONS)})"
        )
    # The cache is in the dtype that was chosen, as everywhere in the engine. OpenVINO's
    # own default is u8: half the memory, less exact, slower to read (5 % seen).
    properties: dict[str, Any] = {PRECISION_HINT: precision, KV_PRECISION: precision}
    if config.num_threads is not None:
        threads = given.setdefault(NUM_THREADS, config.num_threads)
        if threads != config.num_threads:
            raise ConfigError(
                f"executor openvino: {NUM_THREADS} is {threads!r}, num_threads is "
                f"{config.num_threads}; give one"
            )
    return OpenVINOOptions(weights, _group_size(own, weights), properties | given)


def _weights(own: Mapping[str, Any], precision: str) -> str:
    weights = own.get("weights", "auto")
    if not isinstance(weights, str) or weights not in WEIGHTS:
        raise ConfigError(
            f"executor openvino: weights is {weights!r}, must be {_OWN['weights']}"
        )
    if weights in {"int8", "int4"} and find_spec("nncf") is None:
        # Said here: the conversion before it takes longest.
        raise ConfigError(
            f"executor openvino: weights is {weights!r}, which needs NNCF: "
            "pip install 'hybrid-openvino[weights]'"
        )
    if weights != "auto":
        return weights
    return "bf16" if precision == "bf16" else "f32"


def _group_size(own: Mapping[str, Any], weights: str) -> int:
    size = own.get("int4_group_size", DEFAULT_GROUP_SIZE)
    if type(size) is not int or size < 1:
        raise ConfigError(
            f"executor openvino: int4_group_size is {size!r}, must be a whole number "
            "from 1"
        )
    if "int4_group_size" in own and weights != "int4":
        raise ConfigError(
            f"executor openvino: int4_group_size is {size}, but weights is "
            f"{weights!r}, which has no groups"
        )
    return size


def _refuse_unknown(options: Mapping[str, Any], known: Mapping[str, str]) -> None:
    writable = sorted(name for name, access in known.items() if access == "RW")
    for name, value in options.items():
        if not isinstance(value, (str, int)):
            # OpenVINO would take 1.5 for 1, in silence.
            raise ConfigError(
                f"executor openvino: {name} is {value!r}, must be a whole number, "
                "true, false or a text"
            )
        if name not in writable:
            own = ", ".join(f"{key} ({value})" for key, value in _OWN.items())
            raise ConfigError(
                f"executor openvino: unknown option {name!r}; it has {own}, and "
                f"OpenVINO's properties {', '.join(writable)}"
            )
