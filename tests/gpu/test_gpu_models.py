"""On a device: the executor's answers, whoever attends."""

import pytest

from tests.gpu.device_check import Setting
from tests.gpu.model_checks import check_attention, check_tokens

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """One folder, so that each model is written once."""
    return Setting("cuda", tmp_path_factory.mktemp("models"))


def test_both_executors_give_the_same_tokens(setting: Setting) -> None:
    """In float32, of a tiny model, whatever shares a step."""
    assert check_tokens(setting)


@pytest.mark.parametrize("attention", ["torch", "flashinfer", "thop"])
def test_an_implementation_rounds_no_worse_than_torch(
    setting: Setting, attention: str
) -> None:
    """In bfloat16, at SmolLM2's size."""
    assert check_attention(setting, attention)
