"""The options of executor ``tensorrt_llm``, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Final

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.shown_value import shown

from .scaled_kv_pool import FP8

ATTENTIONS: Final = ("auto", "thop", "flashinfer", "torch")
KV_DTYPES: Final = ("auto", FP8)
MIN_SCALE: Final = 1e-6
MAX_SCALE: Final = 128.0
"""The largest 8-bit float times this is still a float16; below the smallest nothing
that a model computes would fit."""


@dataclass(frozen=True, slots=True)
class Options:
    """As ``executor_options`` or ``--executor-option`` give them."""

    attention: str = "auto"
    """Who attends; ``auto``: the first that can."""
    kv_dtype: str = "auto"
    """Of the cache; ``auto``: the model's."""
    kv_scale: float = 1.0
    """Of an 8-bit cache: a stored number times this is the true one."""
    cuda_graphs: bool = True
    """Whether decode steps are captured where device and attention allow it."""

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "Options":
        """Check what was given.

        Raises:
            ConfigError: an option is unknown or its value is none of those it takes.
        """
        known = {
            name: field.default for name, field in cls.__dataclass_fields__.items()
        }
        for name in given:
            if name not in known:
                raise ConfigError(
                    f"executor tensorrt_llm: unknown option {name!r}; it has "
                    f"{', '.join(known)}"
                )
        options = cls(**given)
        _check_choice("attention", options.attention, ATTENTIONS)
        _check_choice("kv_dtype", options.kv_dtype, KV_DTYPES)
        _check_choice("cuda_graphs", options.cuda_graphs, (True, False))
        scale = options.kv_scale
        if not _is_scale(scale):
            raise ConfigError(
                f"executor tensorrt_llm: kv_scale is {shown(scale)}, must be a number "
                f"from {MIN_SCALE} to {MAX_SCALE}"
            )
        options = replace(options, kv_scale=float(scale))
        if scale != 1 and options.kv_dtype == "auto":
            raise ConfigError(
                f"executor tensorrt_llm: kv_scale is {scale}, which only a cache of "
                f"kv_dtype {FP8} uses"
            )
        return options


def _is_scale(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return MIN_SCALE <= float(value) <= MAX_SCALE


def _check_choice(name: str, value: object, choices: tuple[Any, ...]) -> None:
    # True == 1: types count.
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        known = ", ".join(str(choice).lower() for choice in choices)
        raise ConfigError(
            f"executor tensorrt_llm: {name} is {shown(value)}, must be one of {known}"
        )
