"""What the offline API refuses, and how it says so."""

from pathlib import Path

import pytest

from hybrid import LLM, ConfigError, InvalidRequest, ModelNotFound, SamplingParams
from hybrid.testing import check_whole
from tests.backends.tiny_checkpoints import make_model

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
PROMPTS = ["Hello world", "the quick brown fox", "12345 and"]


def test_one_bad_prompt_fails_its_batch_before_anything_runs(llm: LLM) -> None:
    """The message says which; nothing was queued."""
    before = llm.llm_engine.stats().requests_total
    with pytest.raises(InvalidRequest, match=r"prompt 1 of 3: prompt is empty"):
        llm.generate(["Hello", "", "world"], GREEDY)
    with pytest.raises(InvalidRequest, match="2 entries for 3 prompts"):
        llm.generate(PROMPTS, [GREEDY, GREEDY])
    with pytest.raises(InvalidRequest, match="SamplingParams"):
        llm.generate(PROMPTS[0], {"temperature": 0})
    assert llm.llm_engine.stats().requests_total == before
    assert llm.generate([], GREEDY) == []


@pytest.mark.parametrize(
    "prompts", [None, 5, 1.5, [None], [[]], [["a"]], {1, 2}, [10**5000], b"text"]
)
def test_what_is_no_prompt_is_refused_in_one_short_message(
    llm: LLM, prompts: object
) -> None:
    """Whatever it is, the error names the field and stays short."""
    with pytest.raises(InvalidRequest, match="prompt") as caught:
        llm.generate(prompts, GREEDY)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("messages", [None, 5, "Hello", {"role": "user"}, [5], []])
def test_what_is_no_conversation_is_refused(llm: LLM, messages: object) -> None:
    """The error names the messages."""
    with pytest.raises(InvalidRequest, match="message"):
        llm.chat(messages, GREEDY)


@pytest.mark.parametrize("params", [5, SamplingParams, "greedy"])
def test_what_is_no_sampling_params_is_refused(llm: LLM, params: object) -> None:
    """The error names the argument."""
    with pytest.raises(InvalidRequest, match="sampling_params"):
        llm.generate(PROMPTS, params)


def test_a_prompt_beyond_the_context_is_refused_and_its_neighbours_dropped(
    llm: LLM,
) -> None:
    """Nothing is truncated in silence; the engine is idle and whole afterwards."""
    with pytest.raises(InvalidRequest, match="128"):
        llm.generate([[1, 2, 3], [1] * 128], GREEDY)
    with pytest.raises(InvalidRequest, match="3000000 characters, more than 128"):
        llm.generate("abc" * 1_000_000, GREEDY)
    check_whole(llm.llm_engine)
    assert len(llm.generate([[1] * 127], GREEDY)[0].outputs[0].token_ids) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_num_seq": 4},
            "unknown option 'max_num_seq'; did you mean 'max_num_seqs'",
        ),
        ({"block_size": 0}, "block_size is 0"),
        ({"block_size": 24}, "block_size is 24, executor cpu takes 8, 16"),
        ({"kv_cache_memory": "lots"}, "kv_cache_memory is 'lots'"),
        ({"kv_cache_memory": 4096}, "4,096 bytes holds no KV block"),
        ({"kv_cache_memory": "1GiB", "num_kv_blocks": 3}, "give one"),
        ({"dtype": "float99"}, "float99"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"executor": "troch"}, "did you mean 'torch'"),
        ({"scheduler": "pagd"}, "did you mean 'paged'"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy is 'lifo'"),
        ({"max_model_len": 4096}, "max_model_len is 4096"),
        ({"seed": -1}, "seed is -1"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 64},
            "max_num_batched_tokens",
        ),
        ({"model": None}, "needs a model"),
    ],
)
def test_a_wrong_option_is_named_with_its_value(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    """The nearest known name is offered where there is one."""
    make_model("llama").save_pretrained(tmp_path)
    keywords = {"model": str(tmp_path), "skip_tokenizer_init": True} | options
    with pytest.raises(ConfigError, match=message):
        LLM(**keywords)


def test_an_unknown_model_says_what_was_tried() -> None:
    """The nearest known name is offered."""
    with pytest.raises(ModelNotFound, match="smollm2-135m"):
        LLM("smollm2-135")
