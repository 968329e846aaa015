"""Who reads an answer at its end alone gets the text that a stream would have given."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tokenizers

from hybrid import HybridEngine, RequestOutput, SamplingParams
from hybrid.backends.interface import ExecutorConfig
from hybrid.backends.null.executor import NullExecutor
from hybrid.sampler.sampler import Sampler
from hybrid.scheduler import PagedScheduler, SchedulerConfig
from hybrid.tokenizer.tokenizer import Tokenizer
from tests.hybrid.text_decoders import byte_level, sentence_piece

KINDS = [byte_level, sentence_piece]
PROMPT = [70, 80, 90, 100, 110]


class WatchedTokenizer(Tokenizer):
    """Counts what it is asked to decode."""

    num_decoded = 0

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Decode, and count."""
        self.num_decoded += 1
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)


def make_engine(backend: tokenizers.Tokenizer) -> HybridEngine:
    """An engine whose answers are any tokens in any order, broken characters too."""
    tokenizer = WatchedTokenizer(backend)
    executor = NullExecutor()
    options = {"vocab_size": tokenizer.vocab_size}
    executor.load(None, ExecutorConfig(block_size=4, options=options))
    executor.allocate_kv(65)
    config = SchedulerConfig(block_size=4, num_blocks=64, max_model_len=128)
    return HybridEngine(
        PagedScheduler(config),
        executor,
        sampler=Sampler(tokenizer.vocab_size),
        tokenizer=tokenizer,
        block_size=4,
    )


def last_output(
    engine: HybridEngine, params: SamplingParams, *, stream: bool
) -> RequestOutput:
    """The end of one request."""
    engine.add_request("a", {"prompt_token_ids": PROMPT}, params, stream=stream)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert stream or len(outputs) == 1
    return outputs[-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n": 3},
        {"skip_special_tokens": False},
        {"stop_token_ids": list(range(0, 300, 9))},
        {"stop_token_ids": list(range(0, 300, 9)), "include_stop_str_in_output": True},
        {"stop": ["e", "\ufffd"]},
        {"logprobs": 1},
        {"detokenize": False},
    ],
    ids=str,
)
def test_the_last_output_is_that_of_a_stream(
    kind: Callable[[], tokenizers.Tokenizer], seed: int, options: dict[str, Any]
) -> None:
    """Text, ids, reasons and log-probabilities, however the answer ends."""
    params = SamplingParams(temperature=5.0, seed=seed, max_tokens=40, **options)
    streamed = last_output(make_engine(kind()), params, stream=True)
    deferred = last_output(make_engine(kind()), params, stream=False)
    assert deferred.outputs == streamed.outputs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_steps", [0, 1, 2, 7])
def test_an_aborted_answer_has_its_text(
    kind: Callable[[], tokenizers.Tokenizer], num_steps: int
) -> None:
    """As far as it came, though nobody had read it yet."""
    params = SamplingParams(temperature=5.0, seed=0, max_tokens=40)
    ended = []
    for stream in (True, False):
        engine = make_engine(kind())
        engine.add_request("a", {"prompt_token_ids": PROMPT}, params, stream=stream)
        for _ in range(num_steps):
            engine.step()
        ended.append(engine.abort("a"))
    assert ended[0] is not None
    assert ended[1] is not None
    assert ended[1].outputs == ended[0].outputs
    assert len(ended[1].outputs[0].token_ids) == num_steps


def test_text_is_made_when_it_is_read() -> None:
    """At each step of a stream or where it may end the answer, else at the end."""
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    stopping = SamplingParams(temperature=0.0, max_tokens=40, stop=("never",))
    for stream, wanted in ((False, params), (True, params), (False, stopping)):
        engine = make_engine(byte_level())
        engine.add_request("a", {"prompt_token_ids": PROMPT}, wanted, stream=stream)
        tokenizer = engine.tokenizer
        assert isinstance(tokenizer, WatchedTokenizer)
        num_before = tokenizer.num_decoded
        for _ in range(20):
            engine.step()
        is_made = tokenizer.num_decoded > num_before
        assert is_made == (stream or wanted is stopping)
