"""What TensorRT-LLM's attention operator would refuse, and what it would misread.

The operator itself refuses little; the rest is read through bare pointers. Here each
such misreading is refused by name, so that a test sees it.

Source: TensorRT-LLM 1.2, ``thop/attentionOp.cpp``, and for what differs later the
notes of its own callers.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

FP8_KV_CACHE = 128
UNUSED = """
    k v output_sf out_dtype cache_indirection out_scale rotary_inv_freq rotary_cos_sin
    latent_cache q_pe block_ids_per_seq attention_sinks q_lora_rank kv_lora_rank
    qk_nope_head_dim qk_rope_head_dim v_head_dim mrope_rotary_cos_sin
    mrope_position_deltas attention_chunk_size softmax_stats_tensor sparse_kv_indices
    sparse_kv_offsets sparse_attn_indices sparse_attn_offsets rope_append cross_kv
    helix_position_offsets helix_is_inactive_rank relative_attention_bias
    max_context_q_len_override
"""
FIXED = {
    "is_fused_qkv": True,
    "update_kv_cache": True,
    "predicted_tokens_per_seq": 1,
    "beam_width": 1,
    "sink_token_length": 0,
    "mask_type": 1,
    "position_embedding_type": 0,
    "rotary_embedding_dim": 0,
    "rope_dim": 0,
    "use_paged_context_fmha": True,
    "attention_input_type": 0,
    "is_mla_enable": False,
    "is_spec_decoding_enabled": False,
    "use_spec_decoding": False,
    "is_cross": False,
    "spec_decoding_bool_params": [False] * 3,
}
LENGTHS = {
    "rotary_embedding_scales": 3,
    "rotary_embedding_max_position_info": 2,
    "mla_tensor_params": 1,
    "helix_tensor_params": 2,
    "spec_decoding_tensor_params": 3,
    "sparse_attention_params": 4,
}
EARLY_2026_LENGTHS = {**LENGTHS, "spec_decoding_tensor_params": 6}
"""Of the form that has ``helix_tensor_params`` in place of ``mla_tensor_params``."""
HOST_ROWS = (
    "host_past_key_value_lengths",
    "host_context_lengths",
    "host_request_types",
)
DEVICE_ROWS = ("sequence_length", "context_lengths")
Arguments = Mapping[str, Any]


def require(truth: object, message: str) -> None:
    """Fail as the operator does.

    Raises:
        RuntimeError: it is not so.
    """
    if not truth:
        raise RuntimeError(f"thop.attention: {message}")


def check_constants(a: Arguments) -> None:
    """A dense decoder whose rotation is done: all else is off."""
    for name in UNUSED.split():
        require(a.get(name) is None, f"{name} is not for this")
    for name, value in FIXED.items():
        require(a.get(name, value) == value, f"{name} must be {value}")
    lengths = EARLY_2026_LENGTHS if "helix_tensor_params" in a else LENGTHS
    for name, size in lengths.items():
        if name in a:
            require(len(a[name]) == size, f"{name} needs {size} entries")


def check_sizes(a: Arguments) -> None:
    """Heads, fused width, block size, window."""
    q, heads, kv_heads = a["q"], a["num_heads"], a["num_kv_heads"]
    width = (heads + 2 * kv_heads) * a["head_size"]
    require(heads % kv_heads == 0, "num_heads must be a multiple of num_kv_heads")
    require(
        q.dtype in {torch.float16, torch.bfloat16, torch.float32}, f"q is {q.dtype}"
    )
    require(q.dim() == 2 and q.shape[1] == width, f"q must be [N, {width}]")
    require(q.is_contiguous(), "q must be contiguous")
    output = a["output"]
    shape = (len(q), heads * a["head_size"])
    require(tuple(output.shape) == shape, f"output must be {shape}")
    require(output.dtype == q.dtype, "output must have the dtype of q")
    require(output.is_contiguous(), "output must be contiguous")
    block_size = a["tokens_per_block"]
    is_power = block_size and block_size & (block_size - 1) == 0
    require(is_power and block_size >= 16, f"tokens_per_block is {block_size}")
    window = a["attention_window_size"]
    require(window >= max(a["host_past_key_value_lengths"]), "the cache would wrap")


def check_rows(a: Arguments) -> None:
    """One int32 entry a sequence, on the host and on the device apart."""
    num_seqs = len(a["host_context_lengths"])
    require(0 < num_seqs <= a["max_num_requests"], "more than max_num_requests")
    for name in (*HOST_ROWS, *DEVICE_ROWS):
        row = a[name]
        require(row.dtype == torch.int32, f"{name} must be int32, is {row.dtype}")
        require(tuple(row.shape) == (num_seqs,), f"{name} must be [{num_seqs}]")
        require(row.is_contiguous(), f"{name} must be contiguous")
    for name in HOST_ROWS:
        require(a[name].device.type == "cpu", f"{name} must be on the host")
    host = {a[name].data_ptr() for name in HOST_ROWS}
    for name in DEVICE_ROWS:
        require(a[name].device == a["q"].device, f"{name} must be on the device")
        require(a[name].data_ptr() not in host, f"{name} is the host's own array")


def check_order(a: Arguments) -> None:
    """Contexts first; their lengths are how tokens are told apart."""
    kinds = a["host_request_types"].tolist()
    num_contexts = kinds.index(1) if 1 in kinds else len(kinds)
    require(set(kinds) <= {0, 1}, "a request type is neither context nor generation")
    require(all(kinds[num_contexts:]), "a context follows a generation")
    host, num_tokens = a["host_context_lengths"], len(a["q"])
    num_context_tokens = int(host[:num_contexts].sum())
    generations = len(kinds) - num_contexts
    require(
        num_tokens - num_context_tokens == generations,
        f"{num_tokens} tokens are not {num_context_tokens} of contexts and "
        f"{generations} of generations",
    )
    require(a.get("num_contexts", num_contexts) == num_contexts, "num_contexts")
    require(
        a.get("num_ctx_tokens", num_context_tokens) == num_context_tokens,
        "num_ctx_tokens must be the contexts' tokens",
    )


def check_lengths(a: Arguments) -> None:
    """Totals include the step, and the host's are the device's."""
    past, total = a["host_past_key_value_lengths"], a["sequence_length"]
    longest = a["max_context_length"]
    # While a graph is captured the host says the longest that there may be.
    is_capture = bool((past == longest).all()) and bool((total < longest).any())
    if not is_capture:
        require(torch.equal(past, total.cpu()), "host_past_key_value_lengths: after it")
        device = a["context_lengths"].cpu()
        require(torch.equal(a["host_context_lengths"], device), "context_lengths")
    contexts = a["host_request_types"] == 0
    computed = past - a["host_context_lengths"]
    require(bool((computed >= 0).all()), "a sequence is shorter than its context")
    totals = a["host_total_kv_lens"]
    require(totals.dtype == torch.int32, "host_total_kv_lens must be int32")
    require(totals.device.type == "cpu", "host_total_kv_lens must be on the host")
    expected = [int(past[contexts].sum()), int(past[~contexts].sum())]
    require(totals.tolist() == expected, f"host_total_kv_lens must be {expected}")
    require(int(past.max()) <= longest, "longer than max_context_length")
    require(int(past.max()) <= a.get("max_seq_len", longest), "above max_seq_len")


def check_pools(a: Arguments) -> None:
    """Pointers and mapping on the host, offsets on the device, K beside V."""
    pointers, mapping = (
        a["host_kv_cache_pool_pointers"],
        a["host_kv_cache_pool_mapping"],
    )
    require(pointers.dtype == torch.int64, "pool pointers must be int64")
    require(pointers.dim() == 2 and pointers.shape[1] == 2, "pool pointers are [P, 2]")
    require(pointers.device.type == "cpu", "pool pointers must be on the host")
    require(bool((pointers[:, 0] != 0).all()), "a pool pointer is null")
    require(bool((pointers[:, 1] == 0).all()), "there is no pool in host memory here")
    require(mapping.dtype == torch.int32, "pool mapping must be int32")
    require(mapping.dim() == 2 and mapping.shape[1] == 2, "pool mapping is [layers, 2]")
    require(mapping.device.type == "cpu", "pool mapping must be on the host")
    require(0 <= layer_of(a) < len(mapping), "the layer has no row in the mapping")
    offsets = a["kv_cache_block_offsets"]
    require(offsets.dtype == torch.int32, "kv_cache_block_offsets must be int32")
    require(offsets.is_contiguous(), "kv_cache_block_offsets must be contiguous")
    num_pools, rows, fields = offsets.shape[:3]
    require(num_pools == len(pointers), "offsets and pointers of as many pools")
    require(
        rows >= len(a["sequence_length"]) and fields == 2, "offsets are [P, B, 2, M]"
    )
    require(offsets.device == a["q"].device, "kv_cache_block_offsets: on the device")
    check_tables(a)
    if "host_kv_cache_block_offsets" in a:
        host = a["host_kv_cache_block_offsets"]
        require(host is not None, "without the host's offsets there is no cache")
        require(host.data_ptr() != offsets.data_ptr(), "the host's offsets are its own")
        require(torch.equal(host, offsets.cpu()), "the host's offsets are others")


def check_tables(a: Arguments) -> None:
    """Every token has its block, and V follows K by one cell."""
    pool, _ = a["host_kv_cache_pool_mapping"][layer_of(a)].tolist()
    num_layers = int((a["host_kv_cache_pool_mapping"][:, 0] == pool).sum())
    offsets, size = a["kv_cache_block_offsets"][pool].cpu(), a["tokens_per_block"]
    for table, total in zip(offsets, a["sequence_length"].tolist(), strict=False):
        used = -(-total // size)
        require(used <= table.shape[1], "a sequence outgrew its row of offsets")
        keys, values = table[:, :used]
        require(bool((keys >= 0).all()), "an offset is negative, there is no such pool")
        require(bool((keys % (2 * num_layers) == 0).all()), "K's offset is no block's")
        require(torch.equal(values, keys + 1), "V's offset must be K's + 1")
        # Reused blocks are shared, but nobody writes into one that another reads.
        require(len(set(keys.tolist())) == used, "a sequence has a block twice")


def check_quantisation(a: Arguments) -> None:
    """Scales, both, if and only if the mode says that cells are quantised."""
    scales = (a["kv_scale_orig_quant"], a["kv_scale_quant_orig"])
    mode = a["quant_mode"]
    require(mode in {0, FP8_KV_CACHE}, f"quant_mode is {mode}")
    if mode == 0:
        require(scales == (None, None), "scales without a quantised cache")
        return
    for scale in scales:
        is_scale = scale is not None and scale.dtype == torch.float32
        require(is_scale and tuple(scale.shape) == (1,), "scales are float32 [1]")
    product = float(scales[0]) * float(scales[1])
    require(abs(product - 1) < 1e-6, "one scale must be the other's inverse")


def check_workspace(a: Arguments) -> None:
    """A plain run of bytes that can be made longer."""
    workspace = a["workspace_"]
    require(workspace is not None, "no workspace: one is allocated at every call")
    require(workspace.dtype in {torch.int8, torch.uint8}, "workspace must be bytes")
    require(workspace.dim() == 1, "workspace must be flat")
    whole = workspace.untyped_storage().nbytes() == workspace.nbytes
    require(whole, "workspace is a view, which cannot be resized")


def layer_of(a: Arguments) -> int:
    """Row of the mapping, by either of its names."""
    return int(a["local_layer_idx"] if "local_layer_idx" in a else a["layer_idx"])


CHECKS: tuple[Callable[[Arguments], None], ...] = (
    check_constants,
    check_rows,
    check_sizes,
    check_order,
    check_lengths,
    check_pools,
    check_quantisation,
    check_workspace,
)
