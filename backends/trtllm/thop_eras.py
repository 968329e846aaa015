"""The argument lists of TensorRT-LLM's attention operator through its versions.

The operator (``tensorrt_llm.bindings.internal.thop.attention``) was rebuilt twice; what
it does for a dense decoder stayed the same; how it is told did not. An era says by
which names it is known, in which order they stand where that matters, and which values
leave everything alone that we do not use.

Source: TensorRT-LLM, ``cpp/tensorrt_llm/nanobind/thop/bindings.cpp`` at commits
cb4c622c (1.1 and 1.2) and 013ac2b0 (early 2026); of mid-2026 a later state of it and
``attention_backend/fmha/fallback.py`` at 06e777cb. Values: AutoDeploy's
``trtllm_attention.py``, which calls the operator from outside as we do. Which release
brought which era is not known.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

CAUSAL_MASK: Final = 1
"""``AttentionMaskType.causal``; Source: ``tensorrt_llm/functional.py``."""
FP8_KV_CACHE: Final = 128
"""``QuantMode.FP8_KV_CACHE``; Source: ``tensorrt_llm/quantization/mode.py``."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NEEDED: Final = frozenset(
    _names("""
    q output workspace_ sequence_length host_past_key_value_lengths host_total_kv_lens
    context_lengths host_context_lengths host_request_types kv_cache_block_offsets
    host_kv_cache_pool_pointers host_kv_cache_pool_mapping kv_scale_orig_quant
    kv_scale_quant_orig num_heads num_kv_heads head_size tokens_per_block
    max_num_requests max_context_length attention_window_size quant_mode q_scaling
    """)
)
"""Arguments that carry what differs from model to model and from step to step: an
operator without one of them cannot be told."""

SIZES: Final = frozenset(
    _names("""
    max_seq_len max_num_sequences rotary_embedding_max_position_info
    rope_max_positions rope_original_max_positions
    """)
)
"""Arguments that repeat what others say, where there are any."""

_NOTHING: Final[Mapping[str, Any]] = dict.fromkeys(
    _names("""
    k v output_sf cache_indirection out_scale rotary_inv_freq rotary_cos_sin
    latent_cache q_pe block_ids_per_seq attention_sinks q_lora_rank kv_lora_rank
    qk_nope_head_dim qk_rope_head_dim v_head_dim mrope_rotary_cos_sin
    mrope_position_deltas attention_chunk_size softmax_stats_tensor
    """)
)
_DENSE_DECODER: Final[Mapping[str, Any]] = {
    **_NOTHING,
    "is_fused_qkv": True,
    "update_kv_cache": True,
    "predicted_tokens_per_seq": 1,
    "beam_width": 1,
    "mask_type": CAUSAL_MASK,
    "position_embedding_type": 0,  # our model has rotated q and k
    "use_paged_context_fmha": True,  # or a context would not see its cached tokens
    "attention_input_type": 0,  # contexts and generations in one call
    "is_mla_enable": False,
    "chunked_prefill_buffer_batch_size": 1,
}
_ROTARY_LISTS: Final[Mapping[str, Any]] = {
    "sink_token_length": 0,
    "rotary_embedding_dim": 0,
    "rotary_embedding_base": 10000.0,
    "rotary_embedding_scale_type": 0,
    "rotary_embedding_scales": [1.0, 1.0, 1.0],
    "spec_decoding_bool_params": [False, False, False],
}


@dataclass(frozen=True, slots=True)
class ThopEra:
    """One form of the operator."""

    label: str
    """Its versions, for messages."""
    marks: frozenset[str]
    """Arguments that no other era has together."""
    needed: frozenset[str]
    """Arguments without which it cannot be told what to do."""
    layer_argument: str
    """What the layer's row of the pool mapping is called."""
    constants: Mapping[str, Any]
    """Values of arguments that we do not use, by name."""
    positions: tuple[str, ...] | None = None
    """All arguments in order where they are given by place; ``None``: by name."""

    @property
    def known(self) -> frozenset[str]:
        """Arguments that we have a value for."""
        return self.needed | self.constants.keys() | SIZES


ERA_1_2: Final = ThopEra(
    label="1.1 and 1.2",
    marks=frozenset({"sparse_attention_params", "layer_idx"}),
    # Without the host's copy it would run without any KV cache.
    needed=NEEDED | {"host_kv_cache_block_offsets", "layer_idx"},
    layer_argument="layer_idx",
    constants={
        **_DENSE_DECODER,
        **_ROTARY_LISTS,
        "out_dtype": None,
        "mla_tensor_params": [None],
        "spec_decoding_tensor_params": [None] * 3,
        "sparse_attention_params": [None] * 4,
    },
    positions=_names(
        """
        q k v output output_sf out_dtype workspace_ sequence_length
        host_past_key_value_lengths host_total_kv_lens context_lengths
        host_context_lengths host_request_types kv_cache_block_offsets
        host_kv_cache_block_offsets host_kv_cache_pool_pointers
        host_kv_cache_pool_mapping cache_indirection kv_scale_orig_quant
        kv_scale_quant_orig out_scale rotary_inv_freq rotary_cos_sin latent_cache q_pe
        block_ids_per_seq attention_sinks is_fused_qkv update_kv_cache
        predicted_tokens_per_seq layer_idx num_heads num_kv_heads head_size
        tokens_per_block max_num_requests max_context_length attention_window_size
        sink_token_length beam_width mask_type quant_mode q_scaling
        position_embedding_type rotary_embedding_dim rotary_embedding_base
        rotary_embedding_scale_type rotary_embedding_scales
        rotary_embedding_max_position_info use_paged_context_fmha attention_input_type
        is_mla_enable chunked_prefill_buffer_batch_size q_lora_rank kv_lora_rank
        qk_nope_head_dim qk_rope_head_dim v_head_dim mrope_rotary_cos_sin
        mrope_position_deltas mla_tensor_params attention_chunk_size
        softmax_stats_tensor spec_decoding_bool_params spec_decoding_tensor_params
        sparse_attention_params
        """
    ),
)
ERA_EARLY_2026: Final = ThopEra(
    label="early 2026",
    marks=frozenset({"sparse_kv_indices", "layer_idx"}),
    needed=NEEDED | {"layer_idx"},
    layer_argument="layer_idx",
    constants={
        **_DENSE_DECODER,
        **_ROTARY_LISTS,
        "mla_tensor_params": [None] * 2,
        "helix_tensor_params": [None] * 2,  # its later name
        "spec_decoding_tensor_params": [None] * 6,
        "sparse_kv_indices": None,
        "sparse_kv_offsets": None,
        "sparse_attn_indices": None,
        "sparse_attn_offsets": None,
        "sparse_attn_indices_block_size": 1,
    },
)
ERA_MID_2026: Final = ThopEra(
    label="mid-2026",
    marks=frozenset({"local_layer_idx", "rope_dim"}),
    # The numbers of contexts and their tokens have defaults, which are wrong.
    needed=NEEDED
    | {"local_layer_idx", "max_seq_len", "num_contexts", "num_ctx_tokens"},
    layer_argument="local_layer_idx",
    constants={
        **_DENSE_DECODER,
        **dict.fromkeys(
            _names("""
            max_context_q_len_override rope_append helix_position_offsets
            helix_is_inactive_rank spec_decoding_generation_lengths
            spec_decoding_position_offsets_for_cpp spec_decoding_packed_mask
            spec_decoding_bl_tree_mask_offset spec_decoding_bl_tree_mask
            spec_bl_tree_first_sparse_mask_offset_kv sparse_kv_indices
            sparse_kv_offsets sparse_attn_indices sparse_attn_offsets cross_kv
            relative_attention_bias kv_norm_weight
            """)
        ),
        "rope_dim": 0,
        "rope_base": 10000.0,
        "rope_scale_type": 0,
        "rope_scale": 1.0,
        "rope_short_m_scale": 1.0,
        "rope_long_m_scale": 1.0,
        "is_spec_decoding_enabled": False,
        "use_spec_decoding": False,
        "is_spec_dec_tree": False,
        "force_prepare_spec_dec_tree_mask": False,
        "sparse_attn_indices_block_size": 0,
        "is_cross": False,
        "relative_attention_max_distance": 0,
        "kv_norm_eps": 1e-6,
        "skip_correction_threshold": 0.0,
    },
)
ERAS: Final = (ERA_1_2, ERA_EARLY_2026, ERA_MID_2026)
