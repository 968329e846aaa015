"""The stand-in refuses every argument that the real operator would misread.

Each row spoils one argument of a good call; what is not refused here would go unseen in
every other test.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hybrid.bridge import pack_batch
from tests.backends.attention_history import AttentionHistory
from tests.backends.thop_stand import NUM_BLOCKS, make_thop, thop_needs
from tests.backends.trtllm_standin import installed

Change = Callable[[dict[str, Any]], Any]


def good_call(operator: Any, **sizes: Any) -> dict[str, Any]:
    """One mixed step: a chunk after computed tokens, a new prompt, a generation."""
    needs = thop_needs(**sizes)
    attention = make_thop(needs)
    history = AttentionHistory(needs, {"a": 37, "b": 5, "c": 16}, NUM_BLOCKS)
    history.run(attention, ("a", 32, True), ("c", 16, True))
    plan = history.plan(("a", 5, True), ("b", 5, True), ("c", 1, False))
    attention.begin_step(plan, pack_batch(plan))
    dtype = getattr(torch, needs.dtype)
    attention.attend(1, torch.zeros(11, 64, dtype=dtype), torch.empty(11, 32).to(dtype))
    return {name: value for name, value in operator.last.items() if value is not None}


def spoil(call: dict[str, Any], name: str, change: Any) -> dict[str, Any]:
    """One argument replaced: by a value, or by what becomes of the old one."""
    value = call[name].clone() if isinstance(call.get(name), torch.Tensor) else None
    return {**call, name: change(value) if callable(change) else change}


def with_entry(row: int, value: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Replace one entry of a row."""

    def change(row_of: torch.Tensor) -> torch.Tensor:
        row_of[row] = value
        return row_of

    return change


def with_offsets(change: Callable[[torch.Tensor], Any]) -> Change:
    """Change the offsets ``[1, seqs, 2, blocks]`` in place."""

    def changed(offsets: torch.Tensor) -> torch.Tensor:
        change(offsets)
        return offsets

    return changed


def repeat_block(offsets: torch.Tensor) -> None:
    """Let a sequence's second block be its first."""
    offsets[0, 0, :, 1] = offsets[0, 0, :, 0]


MISREAD: list[tuple[str, Any, str]] = [
    ("sequence_length", lambda x: x.long(), "sequence_length must be int32"),
    ("host_context_lengths", lambda x: x.long(), "host_context_lengths must be int32"),
    ("host_request_types", lambda x: x.bool(), "host_request_types must be int32"),
    ("host_total_kv_lens", lambda x: x.long(), "host_total_kv_lens must be int32"),
    ("host_kv_cache_pool_pointers", lambda x: x.int(), "pointers must be int64"),
    ("host_kv_cache_pool_pointers", lambda x: x * 0, "a pool pointer is null"),
    ("host_kv_cache_pool_pointers", lambda x: x[:, [0, 0]], "no pool in host memory"),
    ("host_kv_cache_pool_mapping", lambda x: x.long(), "mapping must be int32"),
    ("host_kv_cache_pool_mapping", lambda x: x[:, :1], r"\[layers, 2\]"),
    ("kv_cache_block_offsets", lambda x: x.long(), "block_offsets must be int32"),
    ("context_lengths", lambda x: x[:2], r"context_lengths must be \[3\]"),
    ("context_lengths", lambda x: x.repeat(2)[::2], "contiguous"),
    # Order and sums.
    ("host_request_types", with_entry(0, 1), "a context follows a generation"),
    ("host_request_types", with_entry(2, 2), "neither context nor generation"),
    ("host_context_lengths", with_entry(0, 6), "11 tokens are not 11 of contexts"),
    ("host_request_types", with_entry(2, 0), "11 tokens are not 26 of contexts"),
    ("host_past_key_value_lengths", lambda x: x - 1, "host_past_key_value_lengths"),
    ("sequence_length", lambda x: x + 1, "host_past_key_value_lengths"),
    ("context_lengths", with_entry(2, 1), "context_lengths"),
    ("host_total_kv_lens", with_entry(0, 11), r"host_total_kv_lens must be \[42, 17\]"),
    # Tables.
    ("kv_cache_block_offsets", with_offsets(repeat_block), "has a block twice"),
    (
        "kv_cache_block_offsets",
        with_offsets(lambda x: x[:, :, 1].sub_(1)),
        "V's offset",
    ),
    ("kv_cache_block_offsets", with_offsets(lambda x: x.add_(1)), "K's offset"),
    ("kv_cache_block_offsets", with_offsets(lambda x: x.neg_()), "negative"),
    ("kv_cache_block_offsets", lambda x: x[:, :2], r"offsets are \[P, B, 2, M\]"),
    ("kv_cache_block_offsets", lambda x: x[..., :1].contiguous(), "outgrew its row"),
    ("kv_cache_block_offsets", lambda x: x.repeat(2, 1, 1, 1), "as many pools"),
    ("kv_cache_block_offsets", lambda x: x.transpose(1, 3), "contiguous"),
    # Sizes.
    ("q", lambda x: x.double(), "q is torch.float64"),
    ("q", lambda x: x[:, :-8].contiguous(), r"q must be \[N, 64\]"),
    ("q", lambda x: x.repeat(1, 2)[:, :64], "q must be contiguous"),
    ("output", lambda x: x[:10], r"output must be \(11, 32\)"),
    ("output", lambda x: x.half(), "dtype of q"),
    ("output", lambda x: x.repeat(1, 2)[:, :32], "output must be contiguous"),
    ("num_kv_heads", 3, "multiple of num_kv_heads"),
    ("tokens_per_block", 8, "tokens_per_block is 8"),
    ("tokens_per_block", 24, "tokens_per_block is 24"),
    ("attention_window_size", 30, "the cache would wrap"),
    ("max_num_requests", 2, "max_num_requests"),
    ("max_context_length", 36, "max_context_length"),
    ("layer_idx", 2, "no row in the mapping"),
    # What a dense decoder leaves off.
    ("k", lambda _: torch.zeros(1), "k is not for this"),
    ("is_fused_qkv", False, "is_fused_qkv must be True"),
    ("update_kv_cache", False, "update_kv_cache must be True"),
    ("use_paged_context_fmha", False, "use_paged_context_fmha must be True"),
    ("mask_type", 0, "mask_type must be 1"),
    ("position_embedding_type", 1, "position_embedding_type must be 0"),
    ("spec_decoding_bool_params", [False], "spec_decoding_bool_params"),
    ("sparse_attention_params", [None], "sparse_attention_params needs"),
    # Memory.
    ("workspace_", None, "no workspace"),
    ("workspace_", lambda x: x.view(torch.int32), "workspace must be bytes"),
    ("workspace_", lambda x: x.view(2, -1), "workspace must be flat"),
    ("workspace_", lambda x: x[1:], "is a view"),
    ("host_kv_cache_block_offsets", None, "there is no cache"),
    ("host_kv_cache_block_offsets", lambda x: x + 1, "the host's offsets are others"),
    # A cache of other numbers than it says.
    ("quant_mode", 64, "quant_mode is 64"),
    ("quant_mode", 128, "scales are float32"),
    ("kv_scale_orig_quant", lambda _: torch.ones(1), "without a quantised cache"),
]


@pytest.mark.parametrize(("name", "change", "message"), MISREAD)
def test_a_spoiled_argument_is_refused(name: str, change: Any, message: str) -> None:
    """By name, before anything is written; the same call unspoiled goes through."""
    with installed("1.2.1") as package:
        operator = package.bindings.internal.thop.attention
        call = good_call(operator)
        operator(**call)
        with pytest.raises(RuntimeError, match=message):
            operator(**spoil(call, name, change))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("num_contexts", 1, "num_contexts"),
        ("num_ctx_tokens", 0, "num_ctx_tokens"),
        ("max_seq_len", 36, "max_seq_len"),
        ("local_layer_idx", 2, "no row"),
        ("use_spec_decoding", True, "use_spec_decoding"),
        ("rope_dim", 8, "rope_dim must be 0"),
        ("is_cross", True, "is_cross must be False"),
    ],
)
def test_what_is_new_in_2026_is_checked_too(
    name: str, change: Any, message: str
) -> None:
    """Numbers that the operator once derived by itself, and other words."""
    with installed("1.4.0rc1") as package:
        operator = package.bindings.internal.thop.attention
        arguments = {one.name: None for one in operator.arguments if not one.default}
        call = {**arguments, **good_call(operator)}
        operator(**call)
        with pytest.raises(RuntimeError, match=message):
            operator(**spoil(call, name, change))


@pytest.mark.parametrize(
    ("version", "name", "size"),
    [
        ("1.2.1", "mla_tensor_params", 1),
        ("1.2.1", "spec_decoding_tensor_params", 3),
        ("1.3.0rc10", "helix_tensor_params", 2),
        ("1.3.0rc10", "spec_decoding_tensor_params", 6),
    ],
)
def test_a_list_has_the_length_of_its_form(version: str, name: str, size: int) -> None:
    """No other form's, nor any other, though nothing in it is used."""
    with installed(version) as package:
        operator = package.bindings.internal.thop.attention
        good_call(operator)
        call = dict(operator.last)
        assert len(call[name]) == size
        for wrong in {1, 2, 3, 6} - {size}:
            with pytest.raises(RuntimeError, match=f"{name} needs {size} entries"):
                operator(**spoil(call, name, [None] * wrong))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.double(), "float32"),
        (lambda x: x.repeat(2), r"\[1\]"),
        (lambda x: x * 2, "inverse"),
        (None, "float32"),
    ],
)
def test_a_quantised_cache_needs_both_scales(change: Any, message: str) -> None:
    """One number each, one the other's inverse; without the mode there are none."""
    with installed("1.2.1") as package:
        operator = package.bindings.internal.thop.attention
        call = good_call(operator, kv_dtype="float8_e4m3fn", kv_scale=0.5)
        operator(**call)
        for name in ("kv_scale_orig_quant", "kv_scale_quant_orig"):
            with pytest.raises(RuntimeError, match=message):
                operator(**spoil(call, name, change))
        with pytest.raises(RuntimeError, match="without a quantised cache"):
            operator(**spoil(call, "quant_mode", 0))


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("sequence_length", "host_past_key_value_lengths"),
        ("context_lengths", "host_context_lengths"),
        ("kv_cache_block_offsets", "host_kv_cache_block_offsets"),
    ],
)
def test_host_memory_is_no_device_memory(name: str, twin: str) -> None:
    """Also where both are the same kind, a device array is one of its own."""
    with installed("1.2.1") as package:
        operator = package.bindings.internal.thop.attention
        call = good_call(operator)
        with pytest.raises(RuntimeError, match="the host's"):
            operator(**{**call, name: call[twin]})


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_num_requests", 7), ("max_context_length", 97), ("q_scaling", 2.0)],
)
def test_a_configuration_that_changes_is_refused(name: str, value: Any) -> None:
    """The operator would keep a second plan, or the first with its smaller buffers."""
    with installed("1.2.1") as package:
        operator = package.bindings.internal.thop.attention
        call = good_call(operator)
        with pytest.raises(RuntimeError, match=f"{name} changed"):
            operator(**{**call, name: value})


def test_memory_that_moves_is_refused() -> None:
    """A captured graph would still read the old."""
    with installed("1.2.1") as package:
        operator = package.bindings.internal.thop.attention
        call = good_call(operator)
        moved = {**call, "sequence_length": call["sequence_length"].clone()}
        with pytest.raises(RuntimeError, match="sequence_length changed"):
            operator(**moved)


@pytest.mark.parametrize(
    ("version", "change"),
    [
        ("1.2.1", {"beam_width": None}),
        ("1.2.1", {"beam_width": 1.0}),
        ("1.2.1", {"is_mla_enable": 0.0}),
        ("1.2.1", {"layer_idx": True}),
        ("1.2.1", {"local_layer_idx": 0}),
        ("1.3.0rc10", {"out_dtype": None}),
        ("1.3.0rc10", {"host_kv_cache_block_offsets": None}),
        ("1.4.0rc1", {"sink_token_length": 0}),
    ],
)
def test_other_types_and_names_are_refused_as_by_the_bindings(
    version: str, change: dict[str, Any]
) -> None:
    """``None`` and floats for whole numbers, and words of another form."""
    with installed(version) as package:
        operator = package.bindings.internal.thop.attention
        good_call(operator)
        with pytest.raises(TypeError, match="attention"):
            operator(**{**operator.last, **change})


def test_what_has_no_default_must_be_given() -> None:
    """Even ``None``, by the forms of 2026."""
    with installed("1.3.0rc10") as package:
        operator = package.bindings.internal.thop.attention
        good_call(operator)
        call = {name: value for name, value in operator.last.items() if name != "k"}
        with pytest.raises(TypeError, match="k is missing"):
            operator(**call)


def test_the_package_is_gone_afterwards() -> None:
    """Also when something went wrong inside."""
    with pytest.raises(RuntimeError, match="inside"), installed("1.2.1"):
        raise RuntimeError("inside")
    with installed("1.4.0rc1") as package:
        assert package.__version__ == "1.4.0rc1"
