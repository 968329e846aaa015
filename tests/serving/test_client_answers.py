"""The client's answers are those that the engine itself gives."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from hybrid import LLM, FinishReason, GrammarKind, SamplingParams, StructuredOutput
from hybrid.client import AnswerPart, AsyncHybridClient, HybridClient
from hybrid.serving.served_model import ServedModel
from tests.hybrid.cli_stand import write_tiny_model
from tests.serving.client_stand import Service, running_service
from tests.serving.service_stand import TIMEOUT_S, load_tiny

PROMPT = "Grüße, 世界 🙂"
GREEDY = SamplingParams(temperature=0, max_tokens=8)
MESSAGES = [{"role": "user", "content": "Wer da? 🙂"}]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """The engine in this process: the oracle."""
    path = write_tiny_model(tmp_path_factory.mktemp("oracle"))
    with LLM(
        model=str(path), executor="null", num_kv_blocks=64, block_size=16
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The same engine, served."""
    loaded = load_tiny(tmp_path_factory.mktemp("served"))
    with running_service(loaded.engine, ServedModel.of(loaded)) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[HybridClient]:
    """A client of it."""
    with HybridClient(service.address) as connected:
        yield connected


def joined(parts: Sequence[AnswerPart]) -> dict[int, dict[str, Any]]:
    """Each sample as its parts make it."""
    samples: dict[int, dict[str, Any]] = {}
    for part in parts:
        sample = samples.setdefault(part.index, {"text": "", "token_ids": ()})
        assert "reason" not in sample, "a part came after the last one"
        sample["text"] += part.text
        sample["token_ids"] += part.token_ids
        if part.finish_reason is not None:
            sample |= {"reason": part.finish_reason, "stop": part.stop_reason}
    return samples


def expected(llm: LLM, params: SamplingParams, prompt: Any = PROMPT) -> dict[int, Any]:
    """What the engine itself says."""
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    return {
        sample.index: {
            "text": sample.text,
            "token_ids": sample.token_ids,
            "reason": sample.finish_reason,
            "stop": sample.stop_reason,
        }
        for sample in output.outputs
    }


def texts_within(llm: LLM) -> tuple[str, str]:
    """Two stop strings that the answer to ``PROMPT`` comes to."""
    params = SamplingParams(temperature=0, max_tokens=40)
    text = expected(llm, params)[0]["text"]
    return text[5:8], text[11]


def cases(llm: LLM) -> list[SamplingParams]:
    """Parameters that decide where text ends, and how."""
    long, short = texts_within(llm)
    ids = expected(llm, SamplingParams(temperature=0, max_tokens=40))[0]["token_ids"]
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
    return [
        SamplingParams(**greedy),
        SamplingParams(**greedy, skip_special_tokens=False),
        SamplingParams(**greedy, stop=(long,)),
        SamplingParams(**greedy, stop=(long, short), include_stop_str_in_output=True),
        SamplingParams(**greedy, stop=(long,), min_tokens=30),
        SamplingParams(**greedy, stop=("never there",)),
        SamplingParams(**greedy, stop_token_ids=(ids[9],)),
        SamplingParams(
            **greedy, stop_token_ids=(ids[9],), include_stop_str_in_output=True
        ),
        SamplingParams(seed=7, max_tokens=12, n=2),
        SamplingParams(seed=2**31 - 1, max_tokens=12, temperature=0.7, top_k=5, n=3),
        SamplingParams(**greedy, logit_bias={int(ids[0]): -100.0}, ignore_eos=True),
        SamplingParams(**greedy, repetition_penalty=1.5, presence_penalty=-0.5),
    ]


def test_text_is_the_engines_own(llm: LLM, client: HybridClient) -> None:
    """Streamed or not, ids, text and ends equal those of the engine in process."""
    for params in cases(llm):
        own = expected(llm, params)
        assert joined(client.generate(PROMPT, params)) == own, params
        assert joined(list(client.stream(PROMPT, params))) == own, params


def test_the_async_client_gives_the_same(llm: LLM, service: Service) -> None:
    """The same cases, all at once over one channel."""

    async def main() -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            AsyncHybridClient(service.address) as client,
        ):

            async def check(params: SamplingParams) -> None:
                own = expected_by[params]
                assert joined(await client.generate(PROMPT, params)) == own
                parts = [part async for part in client.stream(PROMPT, params)]
                assert joined(parts) == own

            await asyncio.gather(*map(check, expected_by))

    expected_by = {params: expected(llm, params) for params in cases(llm)}
    asyncio.run(main(), debug=True)


def test_threads_have_their_own_answers(llm: LLM, client: HybridClient) -> None:
    """One client, many threads: texts, tokenizer and streams do not mix."""
    params = SamplingParams(temperature=0, max_tokens=12)
    prompts = [f"{number} 🙂 {'x' * number}" for number in range(16)]
    own = [expected(llm, params, prompt) for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda prompt: list(client.stream(prompt, params)), prompts)
        assert [joined(parts) for parts in found] == own


def test_an_answer_keeps_to_its_form(llm: LLM, client: HybridClient) -> None:
    """A schema goes to the server; the answer is valid, and the engine's own."""
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    form = StructuredOutput(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    params = SamplingParams(temperature=0, max_tokens=60, structured_output=form)
    (answer,) = client.generate(PROMPT, params)
    jsonschema.validate(json.loads(answer.text), schema)
    assert joined([answer]) == expected(llm, params)


def test_conversations_are_rendered_by_the_models_template(
    llm: LLM, client: HybridClient
) -> None:
    """Messages become the ids that the engine in process makes of them."""
    params = SamplingParams(temperature=0, max_tokens=8)
    (output,) = llm.chat(MESSAGES, params, use_tqdm=False)
    (answer,) = client.chat(MESSAGES, params)
    assert answer.text == output.outputs[0].text
    assert answer.num_prompt_tokens == len(output.prompt_token_ids)
    parts = list(client.stream_chat(MESSAGES, params, add_generation_prompt=True))
    assert "".join(part.text for part in parts) == answer.text


def test_a_stop_token_with_a_text_is_never_shown(
    llm: LLM, client: HybridClient
) -> None:
    """Its id comes before anybody knows that it ends the answer; its text does not."""
    ids = expected(llm, SamplingParams(temperature=0, max_tokens=40))[0]["token_ids"]
    params = SamplingParams(temperature=0, max_tokens=40, stop_token_ids=(ids[9],))
    parts = list(client.stream(PROMPT, params))
    assert parts[-1].finish_reason is FinishReason.STOP
    assert parts[-1].stop_reason == ids[9]
    assert "".join(part.text for part in parts) == expected(llm, params)[0]["text"]


def test_logprobs_are_the_engines_own(llm: LLM, client: HybridClient) -> None:
    """Each token's, the alternatives', and the prompt's, whose first has none."""
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    own = output.outputs[0]
    assert own.logprobs is not None
    for parts in (client.generate(PROMPT, params), list(client.stream(PROMPT, params))):
        logprobs = [entry for part in parts for entry in part.logprobs or ()]
        assert [entry.token_id for entry in logprobs] == list(own.token_ids)
        for entry, position in zip(logprobs, own.logprobs, strict=True):
            values = {i: p.logprob for i, p in position.items() if p.rank <= 2}
            assert entry.top_logprobs == pytest.approx(values)
            assert entry.logprob == pytest.approx(position[entry.token_id].logprob)
        (prompt,) = [p.prompt_logprobs for p in parts if p.prompt_logprobs]
        assert prompt[0] is None
        assert [e.token_id for e in prompt[1:] if e] == list(
            output.prompt_token_ids[1:]
        )


def test_no_logprobs_unless_asked_for(client: HybridClient) -> None:
    """Absent is ``None``; asked for without alternatives is the token's own."""
    params = SamplingParams(temperature=0, max_tokens=2)
    assert client.generate(PROMPT, params)[0].logprobs is None
    params = SamplingParams(temperature=0, max_tokens=2, logprobs=0)
    logprobs = client.generate(PROMPT, params)[0].logprobs
    assert logprobs is not None
    assert [dict(entry.top_logprobs) for entry in logprobs] == [{}, {}]


def test_ids_without_text(llm: LLM, service: Service) -> None:
    """Where no text is wanted, no tokenizer is fetched, and ids are all there is."""
    params = SamplingParams(temperature=0, max_tokens=6, detokenize=False)
    with HybridClient(service.address) as client:
        (answer,) = client.generate([5, 6, 7], params)
        assert client._tokenizer is None
    assert answer.text == ""
    assert answer.token_ids == expected(llm, params, [5, 6, 7])[0]["token_ids"]


def test_facts_of_the_server(service: Service, client: HybridClient) -> None:
    """Model, load and health are what the host knows of itself."""
    model = service.host.model
    info = client.model_info()
    assert (info.name, info.vocab_size) == (model.name, model.vocab_size)
    assert info.max_model_len == model.max_model_len
    assert model.tokenizer is not None
    assert set(info.eos_token_ids) == model.tokenizer.eos_token_ids
    (load,) = client.loads()
    assert load.max_total_tokens == service.host.stats().kv_capacity_tokens
    assert client.health().is_healthy

    async def main() -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            AsyncHybridClient(service.address) as other,
        ):
            assert await other.model_info() == info
            assert (await other.loads())[0].max_total_tokens == load.max_total_tokens
            assert (await other.health()).is_healthy
            await other.abort("unknown")
            answers = await other.chat(MESSAGES, GREEDY)
            parts = [part async for part in other.stream_chat(MESSAGES, GREEDY)]
            assert joined(answers) == joined(parts)

    asyncio.run(main(), debug=True)


def test_the_tokenizer_is_the_models(llm: LLM, client: HybridClient) -> None:
    """It encodes alike, and is fetched once."""
    tokenizer, own = client.tokenizer(), llm.llm_engine.tokenizer
    assert own is not None
    assert tokenizer.encode(PROMPT) == own.encode(PROMPT)
    assert client.tokenizer() is tokenizer
