"""Tiny random models as Hugging Face directories and as GGUF in llama.cpp's layout.

Names and layout are typed here from llama.cpp's converter, not taken from the code
under test.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TORTURE = (
    "Hello 12345, world's  'S we'LL 3.14\u00a0\u0065\u0301 \u00e9 \u03a9 \u6f22\u5b57 "
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\n\n\t x=1;\r\n  <|im_end|> tail   "
)
_CORPUS = (
    "Hello hello world, the world's words: we'll see 12345 and 67890 again and again.",
    "  the quick brown fox jumps over the lazy dog;\n\n\tx = 1\n",
    "\u00e9t\u00e9 \u03a9\u03c0 \u6f22\u5b57\u6f22\u5b57",
) * 3

Tensors = dict[str, npt.NDArray[Any]]
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def train_byte_level() -> tuple[list[str], list[str]]:
    """Return (tokens in id order, merges) of a small byte-level vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    # Training numbers the alphabet in no promised order; files of one run must agree.
    state = json.loads(tokenizer.to_str())
    return tokens, [" ".join(pair) for pair in state["model"]["merges"]]


TOKENS, MERGES = train_byte_level()


def make_model(kind: str, **overrides: Any) -> transformers.PreTrainedModel:
    """Make a tiny random model in float32: ``llama``, ``qwen2`` or ``qwen3``."""
    settings: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": len(TOKENS),
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    configs = {
        "llama": transformers.LlamaConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
    }
    config = configs[kind](**(settings | overrides))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
        else:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def permute(weights: npt.NDArray[Any], num_heads: int) -> npt.NDArray[Any]:
    """Interleave rotary rows as llama.cpp's convert_hf_to_gguf.py does."""
    return (
        weights.reshape(num_heads, 2, weights.shape[0] // num_heads // 2, -1)
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


def gguf_tensors(model: transformers.PreTrainedModel) -> Tensors:
    """Return the model's parameters by GGUF name, rows as llama.cpp keeps them."""
    config = model.config
    heads = {
        "attn_q": config.num_attention_heads,
        "attn_k": config.num_key_value_heads,
    }
    tensors: Tensors = {}
    for name, parameter in model.state_dict().items():
        value = parameter.detach().numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, kind = name.rsplit(".", 1)
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            short = _LAYER_NAMES[part]
            if config.model_type == "llama" and short in heads:
                value = permute(value, heads[short])
            tensors[f"blk.{layer}.{short}.{kind}"] = value
        else:
            names = {
                "model.embed_tokens": "token_embd",
                "model.norm": "output_norm",
                "lm_head": "output",
            }
            tensors[f"{names[stem]}.{kind}"] = value
    return tensors


def write_gguf(
    path: Path,
    model: transformers.PreTrainedModel,
    *,
    tensors: Tensors | None = None,
    raw: Mapping[str, tuple[npt.NDArray[np.uint8], Any]] | None = None,
    metadata: Callable[[gguf.GGUFWriter], None] | None = None,
    tokenizer: Callable[[gguf.GGUFWriter], None] | None = None,
    arch: str | None = None,
) -> ModelSource:
    """Write ``model`` as GGUF; ``raw`` holds quantised tensors with their types."""
    config = model.config
    writer = gguf.GGUFWriter(path, arch or config.model_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if config.model_type == "qwen3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    else:
        writer.add_rope_dimension_count(config.head_dim)
    (tokenizer or add_byte_level_tokenizer)(writer)
    if metadata is not None:
        metadata(writer)
    raw = raw or {}
    for name, value in (gguf_tensors(model) if tensors is None else tensors).items():
        if name in raw:
            data, kind = raw[name]
            writer.add_tensor(name, data, raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelSource("tiny", path, CheckpointFormat.GGUF)


def add_byte_level_tokenizer(
    writer: gguf.GGUFWriter,
    *,
    pre: str | None = "gpt-2",
    merges: Sequence[str] | None = MERGES,
    tokens: Sequence[str] = TOKENS,
    template: str | None = TEMPLATE,
) -> None:
    """Describe the small byte-level vocabulary."""
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(tokens))
    writer.add_token_types([3 if token in SPECIAL_TOKENS else 1 for token in tokens])
    if merges is not None:
        writer.add_token_merges(list(merges))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if template is not None:
        writer.add_chat_template(template)


def logits_of(model: torch.nn.Module) -> torch.Tensor:
    """Return float32 logits of a fixed prompt."""
    prompt = torch.tensor([[5, 17, 42, 99, 3, 250, 7, 1, 2, 60]])
    with torch.no_grad():
        logits: torch.Tensor = model(prompt).logits
    return logits.float()
