"""The options of executor cpu are checked, and named where they are wrong."""

import pytest

from hybrid.backends.cpu.options import CpuOptions
from hybrid.scheduler import ConfigError


def test_without_options_everything_is_chosen_for_the_user() -> None:
    """Each has a default, and any of them may be given alone."""
    assert CpuOptions.parse({}) == CpuOptions("auto", "auto", "auto")
    assert CpuOptions.parse({"quantization": "int4"}).quantization == "int4"
    assert CpuOptions.parse({"kv_cache_dtype": "int8"}).kv_cache_dtype == "int8"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quantisation": "int8"}, "unknown option 'quantisation'; it has quantiz"),
        ({"quantization": "int2"}, "quantization is 'int2', must be one of auto, int8"),
        ({"quantization": 8}, "quantization is 8, must be one of"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype is 'fp8', must be one of auto, fl"),
        ({"implementation": ["native"]}, r"implementation is \['native'\], must be"),
        ({"quantization": None}, "quantization is None"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    given: dict[str, object], message: str
) -> None:
    """The message names the option, its value, and what there is."""
    with pytest.raises(ConfigError, match=f"executor cpu: {message}"):
        CpuOptions.parse(given)
