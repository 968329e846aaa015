"""Forms through the whole engine: samples, preemption, limits, refusals."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hybrid import (
    LLM,
    FinishReason,
    GrammarKind,
    InvalidRequest,
    RequestOutput,
    SamplingParams,
    StructuredOutput,
    UnsupportedFeature,
)
from hybrid.backends.interface import Capabilities
from hybrid.backends.null.executor import NullExecutor
from hybrid.engine import HybridEngine
from hybrid.grammar import compiler
from hybrid.scheduler import FormFailed, GenerateRequest
from hybrid.testing import check_whole
from tests.hybrid.cli_stand import write_tiny_model
from tests.hybrid.null_stand import make_engine

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": -99, "maximum": 9999},
        "s": {"type": "string", "maxLength": 5},
    },
    "required": ["n", "s"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
FORM = StructuredOutput(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
HOT = SamplingParams(temperature=2.0, structured_output=FORM)
PROMPTS = ["first", "the second one", "a third"]


def held(pattern: str, **params: Any) -> SamplingParams:
    """A greedy answer of a pattern."""
    form = StructuredOutput(GrammarKind.REGEX, pattern)
    return SamplingParams(temperature=0.0, structured_output=form, **params)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """Byte-level text over the null executor, whose logits know nothing of JSON."""
    return load(tmp_path_factory.mktemp("form"))


def load(folder: Path, num_kv_blocks: int = 64) -> LLM:
    """An engine with a pool of so many blocks of 8 tokens."""
    return LLM(
        str(write_tiny_model(folder)),
        executor="null",
        block_size=8,
        num_kv_blocks=num_kv_blocks,
    )


def texts_of(outputs: list[RequestOutput]) -> list[str]:
    """The texts of all samples, each of which has come to its end."""
    samples = [sample for output in outputs for sample in output.outputs]
    assert {sample.finish_reason for sample in samples} == {FinishReason.STOP}
    return [sample.text for sample in samples]


def test_every_sample_follows_the_form_by_itself(llm: LLM) -> None:
    """Three samples of one prompt part, and all are valid."""
    params = dataclasses.replace(HOT, n=3, seed=5)
    texts = texts_of(llm.generate(PROMPTS[0], params))
    assert len(set(texts)) == 3
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    check_whole(llm.llm_engine)


def test_a_preempted_answer_goes_on_where_it_was(llm: LLM, tmp_path: Path) -> None:
    """Recomputing its tokens does not move the form on once more."""
    params = [dataclasses.replace(HOT, seed=seed, n=2) for seed in range(3)]
    small = load(tmp_path, num_kv_blocks=10)
    texts = texts_of(small.generate(PROMPTS, params))
    assert small.llm_engine.stats().preemptions_total > 0
    assert texts == texts_of(llm.generate(PROMPTS, params))
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    check_whole(small.llm_engine)


def test_a_seeded_answer_repeats_beside_neighbours_of_other_forms(llm: LLM) -> None:
    """Its draws are its own, and so is where it stands."""
    seeded = dataclasses.replace(HOT, seed=11)
    alone = texts_of(llm.generate(PROMPTS[1], seeded))
    others = [seeded, HOT, SamplingParams(max_tokens=9)]
    together = llm.generate([PROMPTS[1], PROMPTS[0], PROMPTS[2]], others)
    assert texts_of(together[:1]) == alone


def test_a_complete_answer_ends_before_the_minimum(llm: LLM) -> None:
    """Where it may go on it does, until the minimum; where it can only end it ends."""
    assert llm.llm_engine.tokenizer is not None
    (end,) = llm.llm_engine.tokenizer.eos_token_ids
    eager = {"min_tokens": 6, "logit_bias": {end: 100.0}}
    (text,) = texts_of(llm.generate("x", held("[ab]{2,60}", **eager)))
    assert len(text) == 6
    (output,) = llm.generate("x", held("ab", min_tokens=50))
    (sample,) = output.outputs
    assert (sample.text, sample.finish_reason) == ("ab", "stop")
    assert sample.stop_reason is None
    assert len(sample.token_ids) == 3


def test_the_limit_cuts_an_answer_short(llm: LLM) -> None:
    """What is there is the beginning of a complete one."""
    (output,) = llm.generate("x", held("(ab){9}", max_tokens=5))
    (sample,) = output.outputs
    assert (sample.text, sample.finish_reason) == ("ababa", "length")


def test_stops_cut_an_answer_short(llm: LLM) -> None:
    """A stop string is cut from it, and a stop token ends it, as without a form."""
    (output,) = llm.generate("x", held("abcd", stop=("c",)))
    assert output.outputs[0].text == "ab"
    assert output.outputs[0].stop_reason == "c"
    assert llm.llm_engine.tokenizer is not None
    (c,) = llm.llm_engine.tokenizer.encode("c")
    (output,) = llm.generate("x", held("abcd", stop_token_ids=(c,)))
    assert output.outputs[0].text == "ab"
    assert output.outputs[0].stop_reason == c


def test_a_stop_token_that_is_not_of_the_form_never_comes(llm: LLM) -> None:
    """Gateways name the ends of other models, too."""
    tokenizer = llm.llm_engine.tokenizer
    assert tokenizer is not None
    start = tokenizer.bos_token_id
    assert start is not None
    params = held("ab", stop_token_ids=(start,), logit_bias={start: 100.0})
    assert texts_of(llm.generate("x", params)) == ["ab"]


def test_a_bias_and_bans_weigh_what_the_form_leaves(llm: LLM) -> None:
    """A bias chooses among its tokens; a bad word gives way to it."""
    tokenizer = llm.llm_engine.tokenizer
    assert tokenizer is not None
    (b,) = tokenizer.encode("b")
    (z,) = tokenizer.encode("z")
    params = held("[abc]{3}", logit_bias={b: 100.0, z: 100.0})
    assert texts_of(llm.generate("x", params)) == ["bbb"]
    assert texts_of(llm.generate("x", held("[ab]", bad_words=("a",)))) == ["b"]
    assert texts_of(llm.generate("x", held("a", bad_words=("a",)))) == ["a"]


def test_allowed_ids_hold_beside_the_form(llm: LLM) -> None:
    """Both are promises: what is left is in both, and nothing left is an error."""
    tokenizer = llm.llm_engine.tokenizer
    assert tokenizer is not None
    (b, end) = (*tokenizer.encode("b"), *tokenizer.eos_token_ids)
    allowed = held("[abc]{3}", allowed_token_ids=(b, end))
    assert texts_of(llm.generate("x", allowed)) == ["bbb"]
    (output,) = llm.generate("x", held("[ac]", allowed_token_ids=(b, end)))
    assert output.outputs[0].finish_reason == "error"
    with pytest.raises(FormFailed, match="other fields leave none"):
        output.raise_if_failed()
    check_whole(llm.llm_engine)


def test_logprobs_are_those_of_the_raw_logits(llm: LLM) -> None:
    """The likeliest ids are listed, though the form forbids them."""
    free = llm.generate("x", SamplingParams(temperature=0.0, max_tokens=1, logprobs=3))
    (output,) = llm.generate("x", held("ab", logprobs=3))
    assert free[0].outputs[0].logprobs is not None
    assert output.outputs[0].logprobs is not None
    first = dict(output.outputs[0].logprobs[0])
    drawn = first[output.outputs[0].token_ids[0]]
    expected = free[0].outputs[0].logprobs[0]
    assert {i: first[i].logprob for i in expected} == {
        i: entry.logprob for i, entry in expected.items()
    }
    assert drawn.rank is not None
    assert drawn.rank > 1


def test_streaming_grows_to_the_same_answer(llm: LLM) -> None:
    """Every step's text is a beginning of the last."""
    outputs = [output.outputs[0].text for output in llm.stream("x", held("[ab]{5}"))]
    assert all(outputs[-1].startswith(text) for text in outputs)
    assert [outputs[-1]] == texts_of(llm.generate("x", held("[ab]{5}")))


def test_a_bad_form_is_refused_before_anything_is_queued(llm: LLM) -> None:
    """The message names the field; the others of the batch do not run."""
    bad = StructuredOutput(GrammarKind.REGEX, "(")
    with pytest.raises(InvalidRequest, match="structured_output") as caught:
        llm.generate(PROMPTS[:2], [HOT, SamplingParams(structured_output=bad)])
    assert caught.value.field == "structured_output"
    assert not llm.llm_engine.has_unfinished_requests()


def test_a_form_that_is_kept_no_more_is_not_compiled_in_the_engine(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request brings its form along: between two steps there is no time for it."""
    engine = llm.llm_engine
    processed = engine.input_processor.process("evicted", "x", held("[ab]c"))
    monkeypatch.setattr(compiler, "MAX_CACHED", 1)
    engine.input_processor.process("unused", "x", held("other"))

    def never(*_: Any) -> str:
        raise AssertionError("compiled")

    monkeypatch.setattr(compiler, "grammar_source", never)
    engine.add_processed(processed)
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    (text,) = texts_of(outputs[-1:])
    assert text in ("ac", "bc")


def test_an_engine_without_text_refuses_a_form() -> None:
    """Token ids alone spell nothing."""
    engine = make_engine()
    with pytest.raises(InvalidRequest, match="no tokenizer") as caught:
        engine.add_request("a", [1], HOT)
    assert caught.value.field == "structured_output"
    assert not engine.has_unfinished_requests()


class _Sampling(NullExecutor):
    """Claims to sample by itself."""

    def capabilities(self) -> Capabilities:
        """As the null executor's, without logits."""
        return dataclasses.replace(super().capabilities(), returns_logits=False)


def test_an_executor_that_samples_itself_refuses_a_form() -> None:
    """It would draw whatever it likes."""
    engine: HybridEngine = make_engine(executor=_Sampling())
    with pytest.raises(UnsupportedFeature, match="structured_output"):
        engine.add_request("a", [1], held("a"))


class _Insist:
    """Wants one token wherever there is a form."""

    def applies_to(self, request: GenerateRequest) -> bool:
        """Those with a form."""
        return request.sampling_params.structured_output is not None

    def apply(self, *arguments: Any) -> None:
        """Undo the form's verdict on one id."""
        arguments[-1][7] = 1e9


def test_a_form_that_cannot_go_on_ends_its_request_alone(tmp_path: Path) -> None:
    """A processor that brings a forbidden token back has broken the form."""
    path = str(write_tiny_model(tmp_path))
    llm = LLM(path, executor="null", num_kv_blocks=9, logits_processors=[_Insist()])
    outputs = llm.generate(["x", "y"], [held("ab"), SamplingParams(max_tokens=3)])
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert reasons == ["error", "length"]
    with pytest.raises(FormFailed, match="structured_output cannot go on") as caught:
        outputs[0].raise_if_failed()
    assert caught.value.request_id == outputs[0].request_id
    outputs[1].raise_if_failed()
    check_whole(llm.llm_engine)
