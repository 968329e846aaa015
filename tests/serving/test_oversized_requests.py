"""What is too large is refused by its length: nothing walks it in the serving loop."""

from typing import Any, Final
from unittest.mock import Mock

import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb

from hybrid import InvalidRequest
from hybrid.serving import vllm_sampling
from hybrid.serving.serve_config import ServeConfig
from hybrid.serving.vllm_request import parse_request
from hybrid.serving.vllm_sampling import sampling_params_of
from tests.hybrid.null_stand import make_engine
from tests.serving.service_stand import model_of

MANY: Final = 60_000_000


class CountedIds:
    """As many ids as are wished, none of them in memory; counts those that are read."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.num_read = 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice):
            count = len(range(*place.indices(self._length)))
            self.num_read += count
            return [5] * count
        if place >= self._length:
            raise IndexError(place)
        self.num_read += 1
        return 5


class RequestOf:
    """A ``GenerateRequest`` whose ids are counted."""

    def __init__(self, input_ids: CountedIds, **sampling: Any) -> None:
        message = pb.GenerateRequest(sampling_params=pb.SamplingParams(**sampling))
        message.tokenized.SetInParent()
        self._message: Final = message
        self.tokenized: Final = self
        self.input_ids: Final = input_ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


@pytest.mark.parametrize("sampling", [{}, {"truncate_prompt_tokens": MANY - 1}])
def test_a_prompt_that_cannot_fit_is_not_read(sampling: dict[str, Any]) -> None:
    """The error names what came and what fits."""
    ids = CountedIds(MANY)
    with pytest.raises(InvalidRequest, match=r"\d{8} tokens, at most 127 leave"):
        parse_request(RequestOf(ids, **sampling), model_of(make_engine()))
    assert ids.num_read == 0


@pytest.mark.parametrize(("limit", "kept"), [(3, 3), (-1, 128 - 8)])
def test_a_prompt_is_cut_before_it_is_copied(limit: int, kept: int) -> None:
    """Only what is kept is read."""
    ids = CountedIds(MANY)
    request = RequestOf(ids, truncate_prompt_tokens=limit, max_tokens=8)
    parsed = parse_request(request, model_of(make_engine()))
    assert parsed.prompt == [5] * kept
    assert ids.num_read == parsed.num_prompt_tokens == kept


@pytest.mark.parametrize("num_tokens", [127, 128])
def test_the_limit_is_the_engines_own(num_tokens: int) -> None:
    """One token is left for the answer."""
    request = RequestOf(CountedIds(num_tokens))
    model = model_of(make_engine())
    if num_tokens < model.max_model_len:
        assert parse_request(request, model).num_prompt_tokens == num_tokens
    else:
        with pytest.raises(InvalidRequest, match="128 tokens, at most 127"):
            parse_request(request, model)


@pytest.mark.parametrize(
    ("field", "values", "limit"),
    [
        ("stop", ["x"] * 65, 64),
        ("stop_token_ids", [1] * 1025, 1024),
        ("logit_bias", dict.fromkeys(range(4097), 0.5), 4096),
        ("choice", pb.ChoiceConstraint(choices=["x"] * 4097), 4096),
    ],
)
def test_a_list_is_no_longer_than_it_can_mean_anything(
    field: str, values: Any, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused by its length: no parameters are made of it."""
    monkeypatch.setattr(vllm_sampling, "SamplingParams", Mock())
    message = pb.SamplingParams(**{field: values})
    with pytest.raises(InvalidRequest, match=f"{field} has {limit + 1} entries"):
        sampling_params_of(message, vocab_size=97)
    assert vllm_sampling.SamplingParams.mock_calls == []


def test_a_message_is_at_most_a_few_mebibytes_unless_chosen() -> None:
    """Decoding holds the loop: what a million ids need is enough."""
    ids = pb.TokenizedInput(input_ids=[2**18 - 1] * 2**20)
    assert ids.ByteSize() < ServeConfig().max_request_bytes <= 4 << 20
