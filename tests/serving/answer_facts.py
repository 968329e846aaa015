"""What can be said of a server's messages without knowing what the model says.

Two servers that follow one contract agree on these facts, whatever their models and
however many tokens a chunk of theirs carries.
"""

from collections.abc import Iterable, Sequence
from typing import Any

Facts = dict[str, Any]


def answer_facts(responses: Iterable[Any]) -> Facts:
    """The facts of one ``Generate``, by index of the sample."""
    messages = [getattr(r, r.WhichOneof("response")) for r in responses]
    indices = sorted({message.index for message in messages})
    return {
        str(index): _sample_facts([m for m in messages if m.index == index])
        for index in indices
    }


def _sample_facts(messages: Sequence[Any]) -> Facts:
    kinds = [type(message).__name__ for message in messages]
    complete = messages[-1]
    assert kinds[-1] == "GenerateComplete", kinds
    assert kinds.count("GenerateComplete") == 1, kinds
    chunks = messages[:-1]
    facts = {
        "streamed": bool(chunks),
        "finish_reason": complete.finish_reason,
        "matched": complete.WhichOneof("matched_stop"),
        "prompt_tokens": complete.prompt_tokens,
        "completion_tokens": sum(m.completion_tokens for m in chunks or [complete]),
        "ids_equal_counts": all(
            len(ids_of(message)) == message.completion_tokens for message in messages
        ),
        "logprobs": _logprob_sizes(chunks or [complete]),
        "prompt_logprobs": _prompt_logprobs(chunks or [complete]),
    }
    if chunks:
        facts["complete_repeats"] = list(complete.output_ids) == ids_of(chunks[-1])
    if facts["matched"] == "matched_token_id":
        facts["matched_is_last"] = complete.output_ids[-1] == complete.matched_token_id
    return facts


def ids_of(message: Any) -> list[int]:
    """The token ids of a chunk or a complete."""
    has_chunk = hasattr(message, "token_ids")
    return list(message.token_ids if has_chunk else message.output_ids)


def _logprob_sizes(messages: Sequence[Any]) -> list[int] | None:
    """Per token, how many alternatives came; ``None``: no log-probabilities."""
    if not any(message.HasField("output_logprobs") for message in messages):
        return None
    sizes = []
    for message in messages:
        logprobs = message.output_logprobs
        assert list(logprobs.token_ids) == ids_of(message)
        assert all(value <= 0 for value in logprobs.token_logprobs)
        tops = [len(top.values) for top in logprobs.top_logprobs]
        sizes += tops or [0] * len(logprobs.token_logprobs)
    return sizes


def _prompt_logprobs(messages: Sequence[Any]) -> Facts | None:
    """Which prompt tokens have one; ``None``: none was sent."""
    sent = [message.HasField("input_logprobs") for message in messages]
    if not any(sent):
        return None
    logprobs = messages[0].input_logprobs
    return {
        "in_first_message_alone": sent == [True] + [False] * (len(sent) - 1),
        "has_value": [entry.HasField("value") for entry in logprobs.token_logprobs],
        "num_top": [len(top.values) for top in logprobs.top_logprobs],
    }
