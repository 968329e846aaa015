"""On a device: the executor's answers, whoever attends."""

import pytest

from hybrid.backends.trtllm.probe import IMPLEMENTATIONS
from tests.gpu.attention_checks import LIMITS, check_capture, check_steps
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


@pytest.mark.parametrize("kv_dtype", LIMITS)
@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
def test_every_kind_of_step_is_dense_attention(
    setting: Setting, attention: str, kv_dtype: str
) -> None:
    """Over a pool that was full of NaN, eager and replayed."""
    assert check_steps(setting, attention, kv_dtype)


def test_graphs_and_the_scatter_kernel_need_no_library(setting: Setting) -> None:
    """Attention in plain torch, made such that it can be captured."""
    assert check_capture(setting)


@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
def test_an_implementation_rounds_no_worse_than_torch(
    setting: Setting, attention: str
) -> None:
    """In bfloat16, at SmolLM2's size."""
    assert check_attention(setting, attention)
