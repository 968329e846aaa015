"""Tiny random models written with transformers, and transformers' own answers.

Imports torch and transformers when called, never before.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hybrid.scheduler import ConfigError

from .answer import Answer

VOCAB_SIZE: Final = 320
ARCHITECTURES: Final = ("llama", "mistral", "qwen2", "qwen3")
"""What a conformance run takes by default: plain, sliding window, biases, q/k norms."""
OVERRIDES: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": {},
    "mistral": {"sliding_window": 11},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {"sliding_window": 9, "query_pre_attn_scalar": 16},
    "phi3": {"pad_token_id": 0},
}
"""By architecture, what its configuration says besides the sizes."""

_SETTINGS: Final[Mapping[str, Any]] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "eos_token_id": None,
    "bos_token_id": None,
}


def write_tiny_model(folder: Path, architecture: str, **overrides: Any) -> Path:
    """Save a random model of three layers whose answers vary and whose ties are rare.

    Args:
        folder: made if it is not there.
        architecture: transformers' ``model_type``; ``OVERRIDES`` lists those tried.
        overrides: further values of the model's configuration.

    Returns:
        The folder: a Hugging Face directory in float32, without a tokenizer.
    """
    torch, transformers = _import_libraries()
    settings = {**_SETTINGS, **OVERRIDES.get(architecture, {}), **overrides}
    config = transformers.AutoConfig.for_model(architecture, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).float()
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                torch.nn.init.normal_(parameter, std=0.25)
    with torch.no_grad():
        # Rounding must not decide between two ids.
        model.get_output_embeddings().weight.mul_(20)
    model.save_pretrained(folder)
    return folder


def transformers_answers(
    folder: Path,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    *,
    attn_implementation: str = "eager",
) -> list[Answer]:
    """Greedy continuations by transformers' ``generate`` in float32, one by one.

    Args:
        folder: a Hugging Face directory.
        prompts: token ids.
        num_tokens: of each answer.
        attn_implementation: transformers' name of the attention function.
    """
    torch, transformers = _import_libraries()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attn_implementation
    )
    answers = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            output = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
        highest = torch.cat(output.logits).topk(2).values
        answers.append(
            Answer(
                tuple(output.sequences[0, len(prompt) :].tolist()),
                tuple((highest[:, 0] - highest[:, 1]).tolist()),
            )
        )
    return answers


def _import_libraries() -> tuple[Any, Any]:
    """Import torch and transformers: heavy, and not every executor needs them.

    Raises:
        ConfigError: one is not installed; says what to do.
    """
    try:
        import torch  # noqa: PLC0415 - see above
        import transformers  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"tiny models need torch and transformers ({error}): "
            "pip install 'hybrid-llm-engine[torch]', or replace write_model and "
            "reference"
        ) from error
    return torch, transformers
