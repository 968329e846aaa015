"""What the plugin promises besides the conformance kit, as a user would see it."""

import pytest

from hybrid import LLM, SamplingParams
from hybrid.api import ConfigError


def test_a_prompt_of_different_tokens_is_repeated() -> None:
    """Through the whole engine, by the plugin's own policy, over many small blocks."""
    prompts = [[7, 8, 9], [5], list(range(50))]
    params = SamplingParams(temperature=0, max_tokens=60)
    with LLM(executor="echo", scheduler="shortest-prompt", block_size=4) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    assert answers == [(prompt * 60)[:60] for prompt in prompts]


def test_a_text_goes_on_as_it_went_on_last() -> None:
    """Seven was followed by eight, and then, later, by nine."""
    params = SamplingParams(temperature=0, max_tokens=3)
    with LLM(executor="echo") as llm:
        (output,) = llm.generate([[7, 8, 7, 9, 1, 7]], params, use_tqdm=False)
    assert output.outputs[0].token_ids == (9, 1, 7)


def test_the_shortest_prompt_is_served_first() -> None:
    """With one place, answers end in the order of the prompts' lengths."""
    with LLM(executor="echo", scheduler="shortest-prompt", max_num_seqs=1) as llm:
        engine = llm.llm_engine
        for length in (9, 2, 5):
            engine.add_request(str(length), [1] * length, SamplingParams(max_tokens=3))
        done = []
        while engine.has_unfinished_requests():
            done += [out.request_id for out in engine.step() if out.finished]
    assert done == ["2", "5", "9"]


@pytest.mark.parametrize(
    "options",
    [{"vocab": 5}, {"vocab_size": 0}, {"vocab_size": True}, {"vocab_size": 1 << 25}],
)
def test_a_bad_option_is_refused_by_name(options: dict[str, int]) -> None:
    """An unknown one, and a value out of range."""
    with pytest.raises(ConfigError, match="vocab"):
        LLM(executor="echo", executor_options=options)
