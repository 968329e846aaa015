"""A tiny model directory and a scripted engine for the tests of the command line."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybrid.outputs import CompletionOutput, RequestMetrics, RequestOutput
from hybrid.scheduler import FinishReason

CHAT_TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def write_tiny_model(folder: Path) -> Path:
    """A byte-level tokenizer and a config, all that the null executor asks for."""
    import tokenizers  # noqa: PLC0415 - an extra

    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {
        token: index for index, token in enumerate(["<s>", "</s>", *alphabet])
    }
    model = tokenizers.models.BPE(vocab=vocabulary, merges=[])
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": CHAT_TEMPLATE,
    }
    config = {
        "model_type": "llama",
        "vocab_size": len(vocabulary),
        "max_position_embeddings": 256,
        "eos_token_id": vocabulary["</s>"],
    }
    for name, values in (("tokenizer_config", settings), ("config", config)):
        (folder / f"{name}.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def make_output(
    texts: list[str], *, reason: FinishReason | None = None, prompt: str | None = "p"
) -> RequestOutput:
    """A state of a request with one sample per text."""
    return RequestOutput(
        request_id="0",
        prompt=prompt,
        prompt_token_ids=(1, 2),
        prompt_logprobs=None,
        outputs=tuple(
            CompletionOutput(
                index=index,
                text=text,
                token_ids=tuple(range(len(text))),
                cumulative_logprob=None,
                logprobs=None,
                finish_reason=reason,
            )
            for index, text in enumerate(texts)
        ),
        finished=reason is not None,
        metrics=RequestMetrics(
            queue_s=0.0,
            ttft_s=0.0,
            total_s=0.0,
            num_prompt_tokens=2,
            num_output_tokens=sum(map(len, texts)),
            num_cached_tokens=1,
            num_preemptions=0,
        ),
    )


class ScriptedLLM:
    """Takes ``LLM``'s place: answers with the characters of a text, one a step."""

    answer = "Paris."
    error: BaseException | None = None
    """Raised in place of an answer."""
    breaks_off: str | None = None
    """What an answer ends with, in place of its end."""
    last_reason = FinishReason.STOP
    instances: list["ScriptedLLM"]

    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords
        self.requests: list[tuple[Any, Any]] = []
        self.is_closed = False
        self.num_aborted = 0
        type(self).instances.append(self)

    def stream(self, prompt: Any, params: Any) -> Iterator[RequestOutput]:
        """Answer a prompt."""
        self.requests.append((prompt, params))
        if self.error is not None:
            raise self.error
        return self._steps(params.n)

    stream_chat = stream

    def _steps(self, num_samples: int) -> Iterator[RequestOutput]:
        try:
            for end in range(1, len(self.answer) + 1):
                yield make_output([self.answer[:end]] * num_samples)
            texts = [self.answer] * num_samples
            if self.breaks_off is not None:
                broken = make_output(texts, reason=FinishReason.ERROR)
                yield replace(broken, error=self.breaks_off)
                return
            yield make_output(texts, reason=self.last_reason)
        except GeneratorExit:
            self.num_aborted += 1
            raise

    def close(self) -> None:
        """Note that it was closed."""
        self.is_closed = True


def new_scripted_llm() -> type[ScriptedLLM]:
    """A class of its own for one test, so that scripts do not mix."""
    return type("ScriptedLLM", (ScriptedLLM,), {"instances": []})
