"""What TensorRT-LLM's attention operator is called with, era by era, in upstream order.

A word is an argument: ``name`` is required, ``name?`` is required and may be ``None``,
``name=value`` has that default. Nothing here is taken from the code under test.

Source: ``cpp/tensorrt_llm/nanobind/thop/bindings.cpp`` at commits cb4c622c (1.1 and
1.2) and 013ac2b0 (early 2026); of mid-2026 a later file, before ``num_sparse_topk``
took the place of ``sparse_mla_topk_lens``; types from ``thop/attentionOp.h``.
"""

from dataclasses import dataclass
from typing import Final

ERA_1_2: Final = """
q k=None v=None output output_sf=None out_dtype=None workspace_=None sequence_length
host_past_key_value_lengths host_total_kv_lens context_lengths host_context_lengths
host_request_types kv_cache_block_offsets=None host_kv_cache_block_offsets=None
host_kv_cache_pool_pointers=None host_kv_cache_pool_mapping=None
cache_indirection=None kv_scale_orig_quant=None kv_scale_quant_orig=None
out_scale=None rotary_inv_freq=None rotary_cos_sin=None latent_cache=None q_pe=None
block_ids_per_seq=None attention_sinks=None is_fused_qkv update_kv_cache
predicted_tokens_per_seq layer_idx num_heads num_kv_heads head_size
tokens_per_block=None max_num_requests max_context_length attention_window_size
sink_token_length beam_width mask_type quant_mode q_scaling position_embedding_type
rotary_embedding_dim rotary_embedding_base rotary_embedding_scale_type
rotary_embedding_scales rotary_embedding_max_position_info use_paged_context_fmha
attention_input_type=None is_mla_enable chunked_prefill_buffer_batch_size=None
q_lora_rank=None kv_lora_rank=None qk_nope_head_dim=None qk_rope_head_dim=None
v_head_dim=None mrope_rotary_cos_sin=None mrope_position_deltas=None mla_tensor_params
attention_chunk_size=None softmax_stats_tensor=None spec_decoding_bool_params
spec_decoding_tensor_params sparse_attention_params
"""

ERA_EARLY_2026: Final = """
q k? v? output output_sf? workspace_? sequence_length host_past_key_value_lengths
host_total_kv_lens context_lengths host_context_lengths host_request_types
kv_cache_block_offsets? host_kv_cache_pool_pointers? host_kv_cache_pool_mapping?
cache_indirection? kv_scale_orig_quant? kv_scale_quant_orig? out_scale?
rotary_inv_freq? rotary_cos_sin? latent_cache? q_pe? block_ids_per_seq?
attention_sinks? is_fused_qkv update_kv_cache predicted_tokens_per_seq layer_idx
num_heads num_kv_heads head_size tokens_per_block? max_num_requests max_context_length
attention_window_size sink_token_length beam_width mask_type quant_mode q_scaling
position_embedding_type rotary_embedding_dim rotary_embedding_base
rotary_embedding_scale_type rotary_embedding_scales rotary_embedding_max_position_info
use_paged_context_fmha attention_input_type? is_mla_enable
chunked_prefill_buffer_batch_size? q_lora_rank? kv_lora_rank? qk_nope_head_dim?
qk_rope_head_dim? v_head_dim? mrope_rotary_cos_sin? mrope_position_deltas?
helix_tensor_params attention_chunk_size? softmax_stats_tensor?
spec_decoding_bool_params spec_decoding_tensor_params sparse_kv_indices?
sparse_kv_offsets? sparse_attn_indices? sparse_attn_offsets?
sparse_attn_indices_block_size sparse_mla_topk=None
skip_softmax_threshold_scale_factor_prefill=None
skip_softmax_threshold_scale_factor_decode=None skip_softmax_stat=None
cu_q_seqlens=None cu_kv_seqlens=None fmha_scheduler_counter=None mla_bmm1_scale=None
mla_bmm2_scale=None quant_q_buffer=None flash_mla_tile_scheduler_metadata=None
flash_mla_num_splits=None
"""

ERA_MID_2026: Final = """
q k? v? output output_sf? workspace_? sequence_length host_past_key_value_lengths
host_total_kv_lens context_lengths host_context_lengths host_request_types
max_context_q_len_override? kv_cache_block_offsets? host_kv_cache_pool_pointers?
host_kv_cache_pool_mapping? cache_indirection? kv_scale_orig_quant?
kv_scale_quant_orig? out_scale? rotary_inv_freq? rotary_cos_sin? latent_cache? q_pe?
block_ids_per_seq? attention_sinks? is_fused_qkv update_kv_cache
predicted_tokens_per_seq local_layer_idx num_heads num_kv_heads head_size
tokens_per_block? max_num_requests max_context_length max_seq_len
attention_window_size beam_width mask_type quant_mode q_scaling
position_embedding_type rope_dim rope_base rope_scale_type rope_scale
rope_short_m_scale rope_long_m_scale rope_max_positions rope_original_max_positions
use_paged_context_fmha attention_input_type? is_mla_enable
chunked_prefill_buffer_batch_size? q_lora_rank? kv_lora_rank? qk_nope_head_dim?
qk_rope_head_dim? v_head_dim? rope_append? mrope_rotary_cos_sin?
mrope_position_deltas? helix_position_offsets? helix_is_inactive_rank?
attention_chunk_size? softmax_stats_tensor? is_spec_decoding_enabled use_spec_decoding
is_spec_dec_tree spec_decoding_generation_lengths?
spec_decoding_position_offsets_for_cpp? spec_decoding_packed_mask?
spec_decoding_bl_tree_mask_offset? spec_decoding_bl_tree_mask?
spec_bl_tree_first_sparse_mask_offset_kv? sparse_kv_indices? sparse_kv_offsets?
sparse_attn_indices? sparse_attn_offsets? sparse_attn_indices_block_size
num_sparse_topk=None sparse_mla_topk_lens=None
skip_softmax_threshold_scale_factor_prefill=None
skip_softmax_threshold_scale_factor_decode=None skip_softmax_stat=None
cu_q_seqlens=None cu_kv_seqlens=None fmha_scheduler_counter=None mla_bmm1_scale=None
mla_bmm2_scale=None quant_q_buffer=None flash_mla_tile_scheduler_metadata=None
flash_mla_num_splits=None sage_attn_num_elts_per_blk_q=0
sage_attn_num_elts_per_blk_k=0 sage_attn_num_elts_per_blk_v=0 sage_attn_qk_int8=False
num_contexts=0 num_ctx_tokens=0 trtllm_gen_jit_warmup=False
compressed_kv_cache_pool_ptr=None is_cross=False cross_kv=None
relative_attention_bias=None relative_attention_max_distance=0
spec_decoding_target_max_draft_tokens=None quant_scale_qkv=None
dsv4_inv_rope_cos_sin_cache=None enable_dsv4_epilogue_fusion=False
"""

_KINDS: Final = {
    "bool": """
        is_fused_qkv update_kv_cache use_paged_context_fmha is_mla_enable rope_append
        is_spec_decoding_enabled use_spec_decoding is_spec_dec_tree sage_attn_qk_int8
        trtllm_gen_jit_warmup is_cross enable_dsv4_epilogue_fusion
    """,
    "int": """
        predicted_tokens_per_seq layer_idx local_layer_idx num_heads num_kv_heads
        head_size tokens_per_block max_num_requests max_context_length max_seq_len
        attention_window_size sink_token_length beam_width mask_type quant_mode
        position_embedding_type rotary_embedding_dim rotary_embedding_scale_type
        attention_input_type chunked_prefill_buffer_batch_size q_lora_rank kv_lora_rank
        qk_nope_head_dim qk_rope_head_dim v_head_dim attention_chunk_size rope_dim
        rope_scale_type rope_max_positions rope_original_max_positions
        sparse_attn_indices_block_size sparse_mla_topk num_sparse_topk num_contexts
        num_ctx_tokens max_context_q_len_override compressed_kv_cache_pool_ptr
        relative_attention_max_distance sage_attn_num_elts_per_blk_q
        sage_attn_num_elts_per_blk_k sage_attn_num_elts_per_blk_v
        spec_decoding_target_max_draft_tokens
    """,
    "float": """
        q_scaling rotary_embedding_base rope_base rope_scale rope_short_m_scale
        rope_long_m_scale skip_softmax_threshold_scale_factor_prefill
        skip_softmax_threshold_scale_factor_decode
    """,
    "torch.dtype": "out_dtype",
    "collections.abc.Sequence[float]": "rotary_embedding_scales",
    "collections.abc.Sequence[int]": "rotary_embedding_max_position_info",
    "collections.abc.Sequence[bool]": "spec_decoding_bool_params",
    "collections.abc.Sequence[torch.Tensor | None]": """
        mla_tensor_params helix_tensor_params spec_decoding_tensor_params
        sparse_attention_params
    """,
}


@dataclass(frozen=True, slots=True)
class StandInArgument:
    """One argument of the operator."""

    name: str
    kind: str
    """As nanobind prints the type, without ``| None``."""
    may_be_none: bool
    default: str | None
    """As nanobind prints it; ``None``: must be given."""

    def __str__(self) -> str:
        """One argument of a printed signature."""
        none = " | None" if self.may_be_none else ""
        default = "" if self.default is None else f" = {self.default}"
        return f"{self.name}: {self.kind}{none}{default}"


def arguments_of(era: str) -> list[StandInArgument]:
    """Read one of the texts above."""
    kinds = {name: kind for kind, text in _KINDS.items() for name in text.split()}
    found = []
    for word in era.split():
        name, _, default = word.rstrip("?").partition("=")
        kind = kinds.get(name, "torch.Tensor")
        may_be_none = word.endswith(("?", "=None"))
        found.append(StandInArgument(name, kind, may_be_none, default or None))
    return found


def printed(arguments: list[StandInArgument]) -> str:
    """What nanobind puts into ``__doc__``."""
    inside = ", ".join(map(str, arguments))
    return f"attention({inside}) -> None\n\nMulti-head attention operation"
