"""Tiny random models, engines over them, and transformers' own answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from hybrid import HybridEngine, RequestOutput
from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import Executor, ExecutorConfig, ModelInfo
from hybrid.backends.pytorch.executor import TorchExecutor
from hybrid.prompt import Prompt
from hybrid.sampler.sampler import Sampler
from hybrid.scheduler import PagedScheduler, SamplingParams, SchedulerConfig
from hybrid.tokenizer.tokenizer import Tokenizer

VOCAB_SIZE = 320
POOL_BLOCKS = 200
EXTRA: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 11},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {"sliding_window": 9, "query_pre_attn_scalar": 16},
    "phi3": {"pad_token_id": 0},
}


def write_model(folder: Path, kind: str, **overrides: Any) -> Path:
    """Save a random model whose answers vary and whose ties are rare."""
    config = transformers.AutoConfig.for_model(
        kind,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        eos_token_id=None,
        bos_token_id=None,
        **(EXTRA[kind] | overrides),
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.25)
    with torch.no_grad():
        # Rounding must not decide between two ids.
        model.get_output_embeddings().weight.mul_(20)
    model.save_pretrained(folder)
    return folder


def reference(
    folder: Path, prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[list[int]]:
    """Greedy continuations by transformers' ``generate``, each prompt alone."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            output = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        answers.append(output[0, len(prompt) :].tolist())
    return answers


@dataclass(frozen=True, slots=True)
class Loaded:
    """An executor with its pool allocated, for engines of different limits in turn."""

    executor: Executor
    info: ModelInfo
    block_size: int
    tokenizer: Tokenizer | None = None

    def engine(self, *, seed: int = 0, **limits: Any) -> HybridEngine:
        """A fresh scheduler over the same pool; ``limits`` are the scheduler's."""
        defaults = {"num_blocks": POOL_BLOCKS - 1, "max_model_len": 256}
        config = SchedulerConfig(block_size=self.block_size, **(defaults | limits))
        return HybridEngine(
            PagedScheduler(config),
            self.executor,
            sampler=Sampler(self.info.vocab_size, seed=seed),
            tokenizer=self.tokenizer,
            block_size=self.block_size,
        )


def load_torch(
    folder: Path,
    block_size: int,
    *,
    num_threads: int = 1,
    max_model_len: int | None = None,
    device: str = "cpu",
    **options: Any,
) -> Loaded:
    """Load a directory into the torch executor in float32, on a fixed thread count."""
    executor = TorchExecutor()
    config = ExecutorConfig(
        dtype="float32",
        block_size=block_size,
        num_threads=num_threads,
        max_model_len=max_model_len,
        device=device,
        options=options,
    )
    source = ModelSource("tiny", folder, CheckpointFormat.HF_DIRECTORY)
    info = executor.load(source, config)
    executor.allocate_kv(POOL_BLOCKS)
    return Loaded(executor, info, block_size)


def run(
    engine: HybridEngine,
    prompts: Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams],
) -> list[RequestOutput]:
    """Run prompts together to the end; the pool must be whole afterwards."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, each[index], stream=False)
    done = {}
    while engine.has_unfinished_requests():
        done |= {output.request_id: output for output in engine.step()}
    check_whole(engine)
    return [done[str(index)] for index in range(len(prompts))]


def check_whole(engine: HybridEngine) -> None:
    """No request, no owned block, every invariant holds."""
    engine.scheduler.check_integrity()
    stats = engine.scheduler.stats()
    assert stats.num_running == stats.num_waiting == 0
    assert stats.num_free_blocks == stats.num_total_blocks
    assert not engine.has_unfinished_requests()


def ids_of(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    """The first sample's token ids of each output."""
    return [list(output.outputs[0].token_ids) for output in outputs]
