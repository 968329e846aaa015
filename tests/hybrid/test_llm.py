"""The offline API on tiny random models: text, options, stops, errors."""

from pathlib import Path

import numpy as np
import pytest

from hybrid import (
    LLM,
    FinishReason,
    InvalidRequest,
    SamplingParams,
)
from hybrid.testing import check_whole
from tests.backends.tiny_checkpoints import make_model

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
PROMPTS = ["Hello world", "the quick brown fox", "12345 and"]


def test_text_in_text_out_in_order(llm: LLM) -> None:
    """Each output carries its prompt, its ids and the text of its tokens."""
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [output.prompt for output in outputs] == PROMPTS
    tokenizer = llm.llm_engine.tokenizer
    assert tokenizer is not None
    for output in outputs:
        assert output.finished
        assert list(output.prompt_token_ids) == tokenizer.encode(output.prompt or "")
        (sample,) = output.outputs
        assert len(sample.token_ids) == 16
        assert sample.finish_reason == "length"
        whole = [*output.prompt_token_ids, *sample.token_ids]
        # A character cut off by max_tokens shows as one U+FFFD, decoders show several.
        text = tokenizer.decode(whole, skip_special_tokens=True).rstrip("\ufffd")
        assert text == f"{output.prompt}{sample.text}".rstrip("\ufffd")
    check_whole(llm.llm_engine)


def test_every_form_of_a_prompt_gives_the_same_answer(llm: LLM) -> None:
    """Text, mappings, ids; alone or in a list; streamed or not."""
    text = PROMPTS[0]
    ids = list(llm.generate(text, GREEDY)[0].prompt_token_ids)
    forms = [{"prompt": text}, {"prompt_token_ids": ids}, text, ids]
    answers = {llm.generate(form, GREEDY)[0].outputs[0].text for form in forms}
    answers |= {output.outputs[0].text for output in llm.generate(forms, GREEDY)}
    *_, last = llm.stream(text, GREEDY)
    assert answers == {last.outputs[0].text}


@pytest.mark.parametrize("length", [1, 3, 5])
@pytest.mark.parametrize("include", [True, False])
def test_a_stop_string_ends_the_text_wherever_tokens_end(
    llm: LLM, length: int, *, include: bool
) -> None:
    """Streamed text never shows what is cut later, and equals the final text."""
    full = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].text
    stop = full[6 : 6 + length]
    params = SamplingParams(
        temperature=0,
        max_tokens=16,
        ignore_eos=True,
        stop=stop,
        include_stop_str_in_output=include,
    )
    end = full.index(stop) + (length if include else 0)
    shown = ""
    for output in llm.stream(PROMPTS[0], params):
        text = output.outputs[0].text
        assert text.startswith(shown)
        shown = text
    assert shown == full[:end]
    sample = output.outputs[0]
    assert (sample.finish_reason, sample.stop_reason) == (FinishReason.STOP, stop)
    check_whole(llm.llm_engine)


def test_the_models_end_and_a_users_stop_both_count(llm: LLM) -> None:
    """A stop string adds to the model's end-of-sequence, it does not replace it."""
    tokenizer = llm.llm_engine.tokenizer
    assert tokenizer is not None
    (eos, *_) = tokenizer.eos_token_ids
    for min_tokens in (0, 1, 4):
        params = SamplingParams(
            temperature=0,
            max_tokens=8,
            min_tokens=min_tokens,
            stop="never met",
            logit_bias={eos: 100.0},
        )
        sample = llm.generate(PROMPTS[0], params)[0].outputs[0]
        assert len(sample.token_ids) == min_tokens + 1
        assert sample.token_ids[-1] == eos
        assert eos not in sample.token_ids[:-1]
        assert (sample.finish_reason, sample.stop_reason) == (FinishReason.STOP, None)
        assert "<|" not in sample.text


def test_without_detokenize_there_are_ids_and_no_text(llm: LLM) -> None:
    """The ids are those that text would have been made of."""
    params = SamplingParams(
        temperature=0, max_tokens=16, ignore_eos=True, detokenize=False
    )
    sample = llm.generate(PROMPTS[0], params)[0].outputs[0]
    assert sample.text == ""
    assert sample.token_ids == llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].token_ids


def test_chat_renders_the_models_template(llm: LLM) -> None:
    """One conversation or several; the prompt is the template's, once."""
    messages = [{"role": "user", "content": "Hello"}]
    (output,) = llm.chat(messages, GREEDY)
    tokenizer = llm.llm_engine.tokenizer
    assert tokenizer is not None
    assert list(output.prompt_token_ids) == tokenizer.apply_chat_template(messages)
    both = llm.chat([messages, messages], GREEDY)
    assert [o.outputs[0].text for o in both] == [output.outputs[0].text] * 2
    *_, last = llm.stream_chat(messages, GREEDY)
    assert last.outputs[0].text == output.outputs[0].text


def test_several_streams_and_a_batch_share_the_engine(llm: LLM) -> None:
    """Whoever drives the engine, every reader gets its own whole answer."""
    expected = [o.outputs[0].text for o in llm.generate(PROMPTS, GREEDY)]
    streams = [llm.stream(prompt, GREEDY) for prompt in PROMPTS[:2]]
    firsts = [next(stream) for stream in streams]
    assert not any(output.finished for output in firsts)
    (batch,) = llm.generate(PROMPTS[2], GREEDY)
    lasts = [list(stream)[-1] for stream in streams]
    texts = [output.outputs[0].text for output in (*lasts, batch)]
    assert texts == expected
    check_whole(llm.llm_engine)


def test_a_stream_that_nobody_reads_takes_nothing(llm: LLM) -> None:
    """It is checked when it is made, and runs when it is read."""
    stream = llm.stream(PROMPTS[0], GREEDY)
    check_whole(llm.llm_engine)
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        llm.stream("", GREEDY)
    stream.close()


def test_arrays_are_prompts_too(llm: LLM) -> None:
    """Numpy's integers, alone or in arrays, are token ids."""
    ids = [1, 2, 3]
    forms = [
        np.array(ids),
        [np.int64(i) for i in ids],
        {"prompt_token_ids": np.array(ids)},
    ]
    for form in forms:
        assert llm.generate(form, GREEDY)[0].prompt_token_ids == (1, 2, 3)
    outputs = llm.generate(np.array([[1, 2, 3], [4, 5, 6]]), GREEDY)
    assert outputs[1].prompt_token_ids == (4, 5, 6)


def test_leaving_a_stream_early_frees_its_blocks(llm: LLM) -> None:
    """A caller that has seen enough leaves nothing behind."""
    stream = llm.stream(PROMPTS[0], GREEDY)
    next(stream)
    stream.close()
    check_whole(llm.llm_engine)


def test_a_penalty_of_zero_is_no_penalty(llm: LLM) -> None:
    """Explicit zeros and ones change no token."""
    explicit = SamplingParams(
        temperature=0,
        max_tokens=16,
        ignore_eos=True,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        min_p=0.0,
        top_p=1.0,
        top_k=0,
    )
    texts = [
        [o.outputs[0].text for o in llm.generate(PROMPTS, p)]
        for p in (explicit, GREEDY)
    ]
    assert texts[0] == texts[1]


def test_sizes_given_as_text_are_bytes(tmp_path: Path) -> None:
    """A pool of one MiB holds what one MiB of blocks is, less the null block."""
    make_model("llama").save_pretrained(tmp_path)
    with LLM(
        str(tmp_path),
        dtype="float32",
        kv_cache_memory="1 MiB",
        block_size=16,
        skip_tokenizer_init=True,
        num_threads=1,
    ) as llm:
        block_bytes = 2 * 2 * 2 * 16 * 16 * 4
        stats = llm.llm_engine.stats()
        assert stats.kv_total_blocks == 2**20 // block_bytes - 1
        assert stats.kv_capacity_tokens == stats.kv_total_blocks * 16
        with pytest.raises(InvalidRequest, match="no tokenizer"):
            llm.generate("text", GREEDY)
        assert llm.generate([[1, 2, 3]], GREEDY)[0].outputs[0].text == ""


def test_without_a_size_the_pool_holds_what_all_sequences_could_use(
    tmp_path: Path,
) -> None:
    """Sized from free memory, and never beyond ``max_num_seqs`` full contexts."""
    make_model("llama").save_pretrained(tmp_path)
    with LLM(
        str(tmp_path), skip_tokenizer_init=True, max_num_seqs=3, num_threads=1
    ) as llm:
        assert llm.llm_engine.stats().kv_capacity_tokens == 3 * 128


def test_a_priority_decides_who_is_first(llm: LLM) -> None:
    """Lower runs first under the priority policy; one entry per prompt is asked for."""
    with pytest.raises(InvalidRequest, match="priority has 1 entries"):
        llm.generate(PROMPTS, GREEDY, priority=[1])
