"""The options of executor tensorrt_llm: what is wrong is named, with what it takes."""

import re
from typing import Any

import numpy as np
import pytest

from hybrid.backends.trtllm.options import Options
from hybrid.scheduler import ConfigError


def test_nothing_given_is_the_defaults() -> None:
    """Whoever can attends, over a cache in the model's dtype."""
    assert Options.parse({}) == Options("auto", "auto", 1.0, cuda_graphs=True)


FLOAT8 = {"kv_dtype": "float8_e4m3fn"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attentoin": "thop"}, "unknown option 'attentoin'; it has attention, kv_d"),
        ({"attention": "xqa"}, "attention is 'xqa', must be one of auto, thop, flash"),
        ({"attention": None}, "attention is None, must be one of"),
        (
            {"kv_dtype": "int8"},
            "kv_dtype is 'int8', must be one of auto, float8",
        ),
        ({"cuda_graphs": 1}, "cuda_graphs is 1, must be one of true, false"),
        (
            {**FLOAT8, "kv_scale": 0},
            "kv_scale is 0, must be a number from",
        ),
        ({**FLOAT8, "kv_scale": True}, "kv_scale is True, must be"),
        ({**FLOAT8, "kv_scale": "1"}, "kv_scale is '1', must be"),
        (
            {**FLOAT8, "kv_scale": float("inf")},
            "kv_scale is inf, must be a number from 1e-06 to 128.0",
        ),
        ({"kv_scale": 0.5}, "kv_scale is 0.5, which only a cache of kv_dtype float8"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], message: str) -> None:
    """The option, its value, and what it takes."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        Options.parse(given)


def test_a_whole_scale_is_a_float_all_the_same() -> None:
    """Kernels are given its dtype, too."""
    for given in (2, np.float32(2)):
        scale = Options.parse({**FLOAT8, "kv_scale": given}).kv_scale
        assert type(scale) is float
