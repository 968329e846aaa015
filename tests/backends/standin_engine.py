"""Writes the directory of an engine as ``trtllm-build`` would, for the stand-in."""

import json
from pathlib import Path
from typing import Any


def engine_config(model: dict[str, Any], version: str) -> dict[str, Any]:
    """Fill an engine's config.json: fields as TensorRT-LLM 0.17 wrote them, and later.

    Args:
        model: config.json of the Hugging Face directory.
        version: of the builder.
    """
    heads = model["num_attention_heads"]
    return {
        "version": version,
        "pretrained_config": {
            "mlp_bias": False,
            "attn_bias": model["model_type"] == "qwen2",
            "rotary_base": 10000.0,
            "rotary_scaling": None,
            "architecture": model["architectures"][0],
            "dtype": "float32",
            "vocab_size": model["vocab_size"],
            "hidden_size": model["hidden_size"],
            "num_hidden_layers": model["num_hidden_layers"],
            "num_attention_heads": heads,
            "hidden_act": "silu",
            "logits_dtype": "float32",
            "norm_epsilon": 1e-05,
            "position_embedding_type": "rope_gpt_neox",
            "max_position_embeddings": model["max_position_embeddings"],
            "num_key_value_heads": model["num_key_value_heads"],
            "intermediate_size": model["intermediate_size"],
            "mapping": {
                "world_size": 1,
                "gpus_per_node": 8,
                "cp_size": 1,
                "tp_size": 1,
                "pp_size": 1,
            },
            "quantization": {
                "quant_algo": None,
                "kv_cache_quant_algo": None,
                "group_size": 128,
            },
            "head_size": model.get("head_dim") or model["hidden_size"] // heads,
            "qk_layernorm": model["model_type"] == "qwen3",
        },
        "build_config": {
            "max_input_len": 1024,
            "max_seq_len": model["max_position_embeddings"],
            "opt_batch_size": 8,
            "max_batch_size": 256,
            "max_beam_width": 1,
            "max_num_tokens": 8192,
            "opt_num_tokens": 256,
            "max_prompt_embedding_table_size": 0,
            "kv_cache_type": "PAGED",
            "gather_context_logits": False,
            "gather_generation_logits": False,
            "strongly_typed": True,
            "max_draft_len": 0,
            "speculative_decoding_mode": 1,
            "plugin_config": {
                "dtype": "float32",
                "gpt_attention_plugin": "auto",
                "gemm_plugin": None,
                "lora_plugin": None,
                "context_fmha": True,
                "paged_kv_cache": True,
                "remove_input_padding": True,
                "tokens_per_block": 32,
                "use_paged_context_fmha": True,
                "use_fp8_context_fmha": False,
                "multiple_profiles": False,
                "streamingllm": False,
            },
        },
    }


def build_standin_engine(
    weights: Path, out: Path, version: str = "1.2.1", **changes: Any
) -> Path:
    """Write an engine's directory as ``trtllm-build`` would.

    Args:
        weights: a Hugging Face directory.
        out: made if it is not there.
        version: of the builder.
        changes: fields of ``build_config``, ``plugin_config``, ``pretrained_config``,
            ``quantization`` or ``mapping``. Tensors: ``more_tensors``, (mode, dtype) by
            name, and names in ``without``.

    Returns:
        ``out``.
    """
    config = engine_config(json.loads((weights / "config.json").read_text()), version)
    tensors = {
        "more_tensors": changes.pop("more_tensors", {}),
        "without": changes.pop("without", []),
    }
    for key, value in changes.items():
        places = (
            config["pretrained_config"],
            config["pretrained_config"]["quantization"],
            config["pretrained_config"]["mapping"],
            config["build_config"],
            config["build_config"]["plugin_config"],
        )
        next(place for place in places if key in place)[key] = value
    out.mkdir(exist_ok=True, parents=True)
    (out / "config.json").write_text(json.dumps(config, indent=4))
    engine = {"weights": str(weights), "config": config, **tensors}
    (out / "rank0.engine").write_text(json.dumps(engine))
    return out
