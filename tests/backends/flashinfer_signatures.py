"""What FlashInfer's functions are called with, in upstream order.

A word is a parameter: ``name``, or ``name=default``. Nothing here is taken from the
code under test.

Source: the wheel ``flashinfer_python-0.7.4-py3-none-any.whl``, ``flashinfer/decode.py``
and ``flashinfer/prefill.py``; the same names up to ``mask`` are in 0.6.7's.
"""

import ast
from inspect import Parameter, Signature
from typing import Final

_WORDS: Final = {
    "flashinfer.decode.trtllm_batch_decode_with_kv_cache": """
query kv_cache workspace_buffer block_tables seq_lens max_seq_len bmm1_scale=1.0
bmm2_scale=1.0 window_left=-1 out=None out_dtype=None o_sf_scale=None
o_sf_vec_size=None sinks=None kv_layout='HND' enable_pdl=None backend='auto'
q_len_per_req=1 o_scale=1.0 mask=None max_q_len=None cum_seq_lens_q=None
skip_softmax_threshold_scale_factor=None kv_cache_sf=None
uses_shared_paged_kv_idx=True lse=None return_lse=False bmm1_scale_log2=None
multi_ctas_kv_counter_buffer=None enable_block_sparse_attention=False cp_world=1
cp_rank=0 causal_seqlens_kv_global=None bf16q_fp8kv_transform_mode=None
request_order=None request_order_plan=None sparse_top_k=0 length_aware_schedule=False
""",
    "flashinfer.prefill.trtllm_batch_context_with_kv_cache": """
query kv_cache workspace_buffer block_tables seq_lens max_q_len max_kv_len bmm1_scale
bmm2_scale batch_size cum_seq_lens_q cum_seq_lens_kv window_left=-1 out=None
out_dtype=None o_sf_scale=None o_sf_vec_size=None kv_layout='HND' enable_pdl=None
sinks=None kv_cache_sf=None skip_softmax_threshold_scale_factor=None
uses_shared_paged_kv_idx=True causal=True lse=None return_lse=False
multi_ctas_kv_counter_buffer=None use_fp16_softmax=None uses_spcompress=None
backend='trtllm-gen' window_right=-1 variable_window_token_starts=None
variable_window_token_ends=None
""",
    "flashinfer.prefill.trtllm_fmha_v2_prefill": """
qkv input_layout workspace_buffer seq_lens max_q_len max_kv_len bmm1_scale bmm2_scale
batch_size cum_seq_lens_q cum_seq_lens_kv block_tables=None out=None out_dtype=None
sinks=None pos_encoding_mode=None logits_soft_cap_scale=None mask_mode='causal'
window_left=-1 chunked_attention_size=0 save_softmax_stats=False
skip_softmax_threshold_scale_factor=0
""",
}


def _parameter(word: str) -> Parameter:
    name, has_default, default = word.partition("=")
    return Parameter(
        name,
        Parameter.POSITIONAL_OR_KEYWORD,
        default=ast.literal_eval(default) if has_default else Parameter.empty,
    )


SIGNATURES: Final = {
    name: Signature([_parameter(word) for word in words.split()])
    for name, words in _WORDS.items()
}
"""By the function's whole name."""
