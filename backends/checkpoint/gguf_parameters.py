"""Which parameters a model has that is converted from GGUF, in Hugging Face's names."""

from .gguf_config import Architecture


def expected_parameters(
    architecture: Architecture, config: dict[str, object]
) -> dict[str, tuple[int, ...]]:
    """Every parameter of the model by name, with its shape (rows first)."""
    size = {key: value for key, value in config.items() if isinstance(value, int)}
    table = (size["vocab_size"], size["hidden_size"])
    expected: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": table,
        "model.norm.weight": table[1:],
    }
    if not config["tie_word_embeddings"]:
        expected["lm_head.weight"] = table
    layer = _layer_parameters(architecture, config, size)
    for index in range(size["num_hidden_layers"]):
        for name, shape in layer.items():
            expected[f"model.layers.{index}.{name}"] = shape
    return expected


def _layer_parameters(
    architecture: Architecture, config: dict[str, object], size: dict[str, int]
) -> dict[str, tuple[int, ...]]:
    hidden, head_dim = size["hidden_size"], size["head_dim"]
    inner = size["intermediate_size"]
    queries = size["num_attention_heads"] * head_dim
    keys = size["num_key_value_heads"] * head_dim
    attention_bias = bool(config.get("attention_bias"))
    qkv_bias = attention_bias or bool(architecture.default_bias)
    mlp_bias = bool(config.get("mlp_bias"))
    parameters: dict[str, tuple[int, ...]] = {}
    for name, shape, has_bias in (
        ("self_attn.q_proj", (queries, hidden), qkv_bias),
        ("self_attn.k_proj", (keys, hidden), qkv_bias),
        ("self_attn.v_proj", (keys, hidden), qkv_bias),
        ("self_attn.o_proj", (hidden, queries), attention_bias),
        ("mlp.gate_proj", (inner, hidden), mlp_bias),
        ("mlp.up_proj", (inner, hidden), mlp_bias),
        ("mlp.down_proj", (hidden, inner), mlp_bias),
    ):
        parameters[f"{name}.weight"] = shape
        if has_bias:
            parameters[f"{name}.bias"] = shape[:1]
    parameters["input_layernorm.weight"] = (hidden,)
    parameters["post_attention_layernorm.weight"] = (hidden,)
    if architecture.has_head_norms:
        parameters["self_attn.q_norm.weight"] = (head_dim,)
        parameters["self_attn.k_norm.weight"] = (head_dim,)
    return parameters
