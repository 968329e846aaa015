"""The stand-in for the attention plugin refuses each kind of misread tensor."""

from collections.abc import Callable

import pytest
import torch

from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.backends.trtllm.engine_tensors import EngineTensors
from hybrid.bridge import KVLayout, KVOrder, pack_batch
from tests.backends.engine_plans import MIXED
from tests.backends.standin_plugin import PluginStep, check_step

LAYOUT = KVLayout(
    num_blocks=8,
    num_layers=2,
    num_kv_heads=2,
    block_size=32,
    head_dim=4,
    order=KVOrder.BLOCK_FIRST,
)
Inputs = dict[str, torch.Tensor]


def step_of(inputs: Inputs) -> PluginStep:
    """As the engine would hand it to its plugin."""
    return PluginStep(
        inputs=inputs,
        num_kv_heads=2,
        head_dim=4,
        block_size=32,
        kv_dtype=torch.float32,
    )


@pytest.fixture
def inputs() -> Inputs:
    """A context of 8 tokens over 32 cached ones, and a generation."""
    tensors = EngineTensors(
        KVPool(LAYOUT, torch.device("cpu")),
        max_num_seqs=4,
        max_num_tokens=64,
        max_model_len=96,
    )
    return dict(tensors.fill(MIXED, pack_batch(MIXED)))


def plus(amount: int, *place: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Change one number."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone()
        changed[place] += amount
        return changed

    return change


def test_what_is_right_is_taken(inputs: Inputs) -> None:
    """Or the refusals would show nothing."""
    check_step(step_of(inputs))


@pytest.mark.parametrize(
    ("names", "change"),
    [
        (["host_request_types"], lambda types: types.flip(0)),
        (["host_request_types"], lambda types: types * 0),
        (["context_lengths"], plus(1, 0)),
        (["context_lengths", "host_context_lengths"], plus(1, 0)),
        (["context_lengths", "host_context_lengths"], plus(1, 1)),
        (["sequence_length"], plus(1, 0)),
        (["host_past_key_value_lengths"], plus(-8, 0)),
        (["host_past_key_value_lengths"], plus(1, 1)),
        (["last_token_ids"], plus(-1, 0)),
        (["position_ids"], plus(1, 8)),
        (["input_ids"], lambda ids: ids[:-1]),
        (["kv_cache_block_offsets"], plus(4, 0, 0, 0, 0)),
        (["kv_cache_block_offsets", "host_kv_cache_block_offsets"], plus(1, 0, 1, 1)),
        (
            ["kv_cache_block_offsets", "host_kv_cache_block_offsets"],
            lambda offsets: offsets * 0,
        ),
        (
            ["kv_cache_block_offsets", "host_kv_cache_block_offsets"],
            lambda offsets: offsets[..., :1].clone(),
        ),
        (["host_kv_cache_pool_mapping"], plus(1, 1, 0)),
        (["host_kv_cache_pool_pointers"], plus(64, 0, 1)),
        (["host_max_attention_window_sizes"], plus(-60, 1)),
        (["host_sink_token_length"], plus(1, 0)),
        (["cache_indirection"], plus(1, 1, 0, 5)),
        (["cache_indirection"], lambda table: table[:1]),
        (["host_context_progress"], plus(1, 0)),
        (["host_runtime_perf_knobs"], plus(1, 7)),
    ],
)
def test_what_would_be_misread_is_refused(
    inputs: Inputs,
    names: list[str],
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """One tensor that contradicts the others, or what the plugin takes for granted."""
    changed = inputs | {name: change(inputs[name]) for name in names}
    with pytest.raises(AssertionError):
        check_step(step_of(changed))


@pytest.mark.parametrize("name", ["context_lengths", "kv_cache_block_offsets"])
def test_one_array_cannot_lie_on_host_and_device(inputs: Inputs, name: str) -> None:
    """The same numbers at the same address would be read from the wrong side."""
    shared = inputs | {f"host_{name}": inputs[name]}
    with pytest.raises(AssertionError):
        check_step(step_of(shared))
