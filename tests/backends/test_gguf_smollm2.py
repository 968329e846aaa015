"""The real SmolLM2-135M: converted, it is what transformers reads from the file."""

from pathlib import Path

import pytest
import torch
import transformers

from hybrid.backends.checkpoint.gguf_conversion import convert_gguf
from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.pytorch.model_loader import load_model
from hybrid.models.cache import cache_dir
from hybrid.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.model

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def source() -> ModelSource:
    """Find the file in the model cache."""
    path = cache_dir() / "models" / "smollm2-135m" / FILE
    if not path.is_file():
        pytest.skip(f"{path} is not there; `hybrid pull smollm2-135m` fetches it")
    return ModelSource("smollm2-135m", path, CheckpointFormat.GGUF)


@pytest.fixture(scope="module")
def directory(source: ModelSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convert into a directory of the test's own."""
    cache = tmp_path_factory.mktemp("converted")
    return convert_gguf(source, dtype="float32", cache_dir=cache).path


def test_weights_and_logits_equal_transformers(
    source: ModelSource, directory: Path
) -> None:
    """Every parameter is what transformers dequantises, and so are the logits."""
    ours = load_model(
        directory, dtype="float32", device="cpu", attn_implementation="sdpa"
    )
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        source.path.parent,
        gguf_file=source.path.name,
        dtype=torch.float32,
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    weights = theirs.state_dict()
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, weights[name], rtol=0, atol=1e-6)
    assert ours.config.tie_word_embeddings
    prompt = torch.tensor([[1, 9690, 198, 2683, 359, 253, 5356, 5646]])
    with torch.no_grad():
        torch.testing.assert_close(
            ours(prompt).logits, theirs(prompt).logits, rtol=0, atol=1e-3
        )


def test_tokenizer_is_the_models_own(directory: Path) -> None:
    """Digits apart, no BOS in front of plain text, ChatML with the model's system."""
    tokenizer = Tokenizer.from_directory(directory)
    assert tokenizer.vocab_size == 49152
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_ids == {2}
    digits = tokenizer.encode("12345")
    assert [tokenizer.decode([i], skip_special_tokens=False) for i in digits] == list(
        "12345"
    )
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert ids.count(1) == 3
