"""Where TensorRT-LLM's operator can serve it is preferred; where not, it says why."""

import pytest

from hybrid.backends.trtllm.probe import choose_attention
from hybrid.scheduler import ConfigError
from tests.backends.thop_stand import MACHINE, thop_needs
from tests.backends.trtllm_standin import ERAS, installed


@pytest.mark.parametrize("version", ERAS)
def test_it_is_the_first_choice(version: str) -> None:
    """In every form that is known."""
    with installed(version):
        assert choose_attention("auto", MACHINE, thop_needs()).name == "thop"


def test_a_windowed_model_is_attended_by_another() -> None:
    """The reason is kept, and is the error of whoever insisted."""
    needs = thop_needs(windows=(None, 11))
    with installed("1.2.1"):
        choice = choose_attention("auto", MACHINE, needs)
        with pytest.raises(ConfigError, match="'thop' cannot serve: a sliding window"):
            choose_attention("thop", MACHINE, needs)
    assert choice.name == "torch"
    assert "sliding window of 11 tokens" in choice.reasons["thop"]
