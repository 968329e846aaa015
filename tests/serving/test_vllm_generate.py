"""Generate: what a stream says, piece by piece, and that its pieces add up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smg_grpc_proto import vllm_engine_pb2 as pb

from hybrid import RequestOutput, SamplingParams
from hybrid.serving.served_model import ServedModel
from hybrid.serving.vllm_stream import AnswerMessages
from hybrid.testing import run
from tests.hybrid.null_stand import make_engine
from tests.serving.service_stand import Served, generate, load_tiny, request, serve

PROMPT = [1, 2, 3, 4, 5]


def answer_to(message: Any, **engine: Any) -> list[Any]:
    """The messages that one request gets from an engine of its own."""

    async def body(served: Served) -> list[Any]:
        return await generate(served, message)

    return serve(make_engine(**engine), body)


def offline(**sampling: Any) -> RequestOutput:
    """The answer of the engine without a server."""
    values = {"temperature": 0, "max_tokens": 8} | sampling
    (output,) = run(make_engine(), [PROMPT], SamplingParams(**values))
    return output


def chunks(messages: Sequence[Any], index: int = 0) -> list[Any]:
    """The chunks of one sample."""
    return [
        message
        for message in messages
        if isinstance(message, pb.GenerateStreamChunk) and message.index == index
    ]


def completes(messages: Sequence[Any]) -> list[Any]:
    """The messages that end a sample."""
    return [m for m in messages if isinstance(m, pb.GenerateComplete)]


def test_without_stream_there_is_one_complete_with_everything() -> None:
    """No chunk; the ids are those of the offline engine, the counts are theirs."""
    (complete,) = answer_to(request(PROMPT))
    assert isinstance(complete, pb.GenerateComplete)
    assert tuple(complete.output_ids) == offline().outputs[0].token_ids
    assert complete.finish_reason == "length"
    assert complete.prompt_tokens == len(PROMPT)
    assert complete.completion_tokens == len(complete.output_ids) == 8
    assert complete.WhichOneof("matched_stop") is None


def test_a_stream_is_deltas_and_one_complete_that_repeats_the_last() -> None:
    """Every chunk counts its own ids alone; together they are the whole answer."""
    messages = answer_to(request(PROMPT, stream=True))
    *deltas, complete = messages
    assert chunks(messages) == deltas
    assert completes(messages) == [complete]
    token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
    assert tuple(token_ids) == offline().outputs[0].token_ids
    for delta in deltas:
        assert delta.completion_tokens == len(delta.token_ids) > 0
        assert delta.prompt_tokens == len(PROMPT)
    assert complete.output_ids == deltas[-1].token_ids
    assert complete.completion_tokens == deltas[-1].completion_tokens
    assert complete.finish_reason == "length"


def outputs_of(**sampling: Any) -> tuple[SamplingParams, list[RequestOutput]]:
    """Every output of a request, as the engine gives them step by step."""
    params = SamplingParams(temperature=0, max_tokens=12, **sampling)
    engine = make_engine()
    engine.add_request("r", PROMPT, params)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return params, outputs


@settings(deadline=None, max_examples=40)
@given(st.sets(st.integers(0, 10)))
def test_a_reader_that_missed_outputs_gets_the_same_answer(missed: set[int]) -> None:
    """Fewer, larger deltas; ids, log-probabilities and counts still add up."""
    params, outputs = outputs_of(logprobs=2, prompt_logprobs=1)
    stream = AnswerMessages(params, stream=True)
    read = [output for step, output in enumerate(outputs) if step not in missed]
    messages = [
        getattr(message, message.WhichOneof("response"))
        for output in read
        for message in stream.take(output)
    ]
    deltas, last = chunks(messages), outputs[-1].outputs[0]
    assert len(deltas) == len(read)
    assert [i for delta in deltas for i in delta.token_ids] == list(last.token_ids)
    assert sum(delta.completion_tokens for delta in deltas) == len(last.token_ids)
    logprobs = [v for d in deltas for v in d.output_logprobs.token_logprobs]
    assert last.logprobs is not None
    assert logprobs == pytest.approx(
        [
            position[token_id].logprob
            for token_id, position in zip(last.token_ids, last.logprobs, strict=True)
        ]
    )
    assert [delta.HasField("input_logprobs") for delta in deltas] == [
        True,
        *[False] * (len(deltas) - 1),
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_samples_have_an_index_and_one_complete_each(stream: bool) -> None:
    """Two seeded samples: each index's pieces are that sample's answer."""
    sampling = {"n": 2, "seed": 7, "temperature": 1.5}
    messages = answer_to(request(PROMPT, stream=stream, **sampling))
    expected = [sample.token_ids for sample in offline(**sampling).outputs]
    assert expected[0] != expected[1]
    ends = sorted(completes(messages), key=lambda complete: complete.index)
    assert [complete.index for complete in ends] == [0, 1]
    for index, complete in enumerate(ends):
        pieces = chunks(messages, index)
        assert bool(pieces) == stream
        token_ids = [i for piece in pieces for i in piece.token_ids]
        assert tuple(token_ids or complete.output_ids) == expected[index]


@pytest.mark.parametrize("stream", [False, True])
def test_a_sample_that_ends_first_is_over(stream: bool) -> None:
    """One complete each, though the other sample's answer goes on."""
    sampling = {"n": 2, "seed": 7, "temperature": 1.5}
    first, second = (sample.token_ids for sample in offline(**sampling).outputs)
    stop_id = next(i for i in first if i not in second)
    message = request(PROMPT, stream=stream, stop_token_ids=[stop_id], **sampling)
    messages = answer_to(message)
    ends = {complete.index: complete for complete in completes(messages)}
    assert len(ends) == len(completes(messages)) == 2
    assert ends[0].matched_token_id == stop_id
    assert ends[1].WhichOneof("matched_stop") is None
    if stream:
        order = [type(m) for m in messages if m.index == 0]
        assert order == [pb.GenerateStreamChunk] * (len(order) - 1) + [type(ends[0])]


@pytest.mark.parametrize("num_top", [0, 1, 3])
def test_logprobs_are_those_of_the_offline_engine(num_top: int) -> None:
    """The drawn id's stands alone; the likeliest k follow, none for 0."""
    (complete,) = answer_to(request(PROMPT, logprobs=num_top))
    sample = offline(logprobs=num_top).outputs[0]
    assert sample.logprobs is not None
    got = complete.output_logprobs
    assert list(got.token_ids) == list(sample.token_ids)
    drawn = zip(sample.token_ids, sample.logprobs, strict=True)
    assert list(got.token_logprobs) == pytest.approx(
        [position[token_id].logprob for token_id, position in drawn]
    )
    assert len(got.top_logprobs) == (len(sample.token_ids) if num_top else 0)
    for top, position in zip(got.top_logprobs, sample.logprobs, strict=num_top > 0):
        by_rank = sorted(position.items(), key=lambda item: item[1].rank)[:num_top]
        assert list(top.token_ids) == [token_id for token_id, _ in by_rank]
        assert list(top.values) == pytest.approx([e.logprob for _, e in by_rank])


def test_an_unlikely_draw_takes_no_place_among_the_likeliest() -> None:
    """The k alternatives stay the k likeliest when the drawn id is none of them."""
    sampling = {"logprobs": 1, "seed": 3, "temperature": 50.0}
    (complete,) = answer_to(request(PROMPT, **sampling))
    got = complete.output_logprobs
    tops = [list(top.token_ids) for top in got.top_logprobs]
    assert all(len(top) == 1 for top in tops)
    assert [[token_id] for token_id in got.token_ids] != tops


def test_no_logprobs_unless_asked_for() -> None:
    """A missing count is none, not zero."""
    (complete,) = answer_to(request(PROMPT))
    assert not complete.HasField("output_logprobs")
    assert not complete.HasField("input_logprobs")


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_predicts_the_first_prompt_token(stream: bool) -> None:
    """Its wrapper is empty; a stream gives prompt values in an index's first chunk."""
    message = request(PROMPT, n=2, seed=1, prompt_logprobs=2, stream=stream)
    messages = answer_to(message)
    expected = offline(prompt_logprobs=2).prompt_logprobs
    assert expected is not None
    ends = completes(messages)
    assert [m.HasField("input_logprobs") for m in ends] == [not stream] * 2
    for index in range(2):
        pieces = chunks(messages, index) if stream else [ends[index]]
        told = [piece.HasField("input_logprobs") for piece in pieces]
        assert told == [True, *[False] * (len(pieces) - 1)]
        got = pieces[0].input_logprobs
        assert list(got.token_ids) == PROMPT
        assert [v.HasField("value") for v in got.token_logprobs] == [
            False,
            *[True] * (len(PROMPT) - 1),
        ]
        assert not got.top_logprobs[0].token_ids
        for token_id, value, top, position in zip(
            PROMPT[1:],
            got.token_logprobs[1:],
            got.top_logprobs[1:],
            expected[1:],
            strict=True,
        ):
            assert position is not None
            assert value.value == pytest.approx(position[token_id].logprob)
            assert list(top.token_ids) == list(position)[:2]


def test_a_stop_id_ends_the_answer_and_is_part_of_it() -> None:
    """The id is named, and is the last of the ids."""
    stop_id = offline().outputs[0].token_ids[3]
    (complete,) = answer_to(request(PROMPT, stop_token_ids=[stop_id]))
    assert complete.finish_reason == "stop"
    assert complete.matched_token_id == stop_id
    assert complete.output_ids[-1] == stop_id


def test_without_a_limit_the_answer_fills_the_context() -> None:
    """No max_tokens: to the model's length, prompt and answer together."""
    (complete,) = answer_to(request(PROMPT, max_tokens=None, ignore_eos=True))
    assert complete.finish_reason == "length"
    assert len(complete.output_ids) == 128 - len(PROMPT)


def test_tokens_of_the_prefix_cache_are_counted() -> None:
    """The second of two equal requests says how much of its prompt was there."""
    prompt = list(range(1, 14))

    async def body(served: Served) -> list[int]:
        answers = [await generate(served, request(prompt)) for _ in range(2)]
        return [complete.cached_tokens for (complete,) in answers]

    assert serve(make_engine(block_size=4), body) == [0, 12]


def test_a_prompt_is_cut_to_its_last_tokens() -> None:
    """A count keeps that many; -1 keeps what leaves room for the answer."""
    long = [*range(1, 90), *range(1, 90)]

    async def body(served: Served) -> list[Any]:
        return [
            (await generate(served, request(prompt, **sampling)))[0]
            for prompt, sampling in (
                (long, {"truncate_prompt_tokens": 3}),
                (long[-3:], {}),
                (long, {"truncate_prompt_tokens": -1}),
                (PROMPT, {"truncate_prompt_tokens": 60}),
                (long, {"truncate_prompt_tokens": -1, "max_tokens": 500}),
            )
        ]

    short, same, fitting, whole, least = serve(make_engine(num_blocks=64), body)
    assert short.prompt_tokens == 3
    assert short.output_ids == same.output_ids
    assert fitting.prompt_tokens == 128 - 8
    assert fitting.completion_tokens == 8
    assert whole.prompt_tokens == len(PROMPT)
    assert least.prompt_tokens == 1


def test_text_is_tokenized_here_and_stop_strings_end_the_answer(tmp_path: Path) -> None:
    """A text gets the answer of its ids; the stop string that was met is named."""
    loaded = load_tiny(tmp_path)
    tokenizer = loaded.engine.tokenizer
    assert tokenizer is not None
    prompt = tokenizer.encode("Hello")

    async def body(served: Served) -> list[Any]:
        (by_text,) = await generate(served, request("Hello", ignore_eos=True))
        (by_ids,) = await generate(served, request(prompt, ignore_eos=True))
        text = tokenizer.decode(by_ids.output_ids, skip_special_tokens=False)
        (stopped,) = await generate(
            served, request(prompt, ignore_eos=True, stop=[text[4]])
        )
        assert text[4] == stopped.matched_stop_str
        return [by_text, by_ids, stopped]

    by_text, by_ids, stopped = serve(loaded.engine, body, ServedModel.of(loaded))
    assert by_text == by_ids
    assert stopped.finish_reason == "stop"
    assert len(stopped.output_ids) <= 5
    assert list(stopped.output_ids) == by_ids.output_ids[: len(stopped.output_ids)]
