"""Which parameters a model has that is converted from GGUF, in Hugging Face's names."""

from .gguf_config import Architecture


def expected_parameters(
    architecture: Architecture, config: dict[str, object]
) -> dict[str, tuple[int, ...]]:
    """Every parameter of the model by name, with its shape (rows first)."""
    size = {key: value for key, value in config.items() if isinstance(value, int)}
    hidden, head_dim = size["hidden_size"], size["head_dim"]
    inner, vocab = size["intermediate_size"], size["vocab_size"]
    queries = size["num_attention_heads"] * head_dim
    keys = size["num_key_value_heads"] * head_dim
    expected: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        expected["lm_head.weight"] = (vocab, hidden)
    qkv_bias = bool(config.get("attention_bias", architecture.default_bias))
    biased = {
        "self_attn.q_proj": qkv_bias,
        "self_attn.k_proj": qkv_bias,
        "self_attn.v_proj": qkv_bias,
        "self_attn.o_proj": bool(config.get("attention_bias")),
    }
    matrices = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    vectors = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if architecture.has_head_norms:
        vectors |= {"self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}
    for layer in range(size["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for part, shape in matrices.items():
            expected[f"{prefix}{part}.weight"] = shape
            if biased.get(part, bool(config.get("mlp_bias"))):
                expected[f"{prefix}{part}.bias"] = shape[:1]
        for part, length in vectors.items():
            expected[f"{prefix}{part}.weight"] = (length,)
    return expected
