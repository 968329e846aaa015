"""Our server and vLLM's own are asked the same; where answers differ, here is why.

``reference_answers.json`` is what vLLM 0.32.0 said by smg-grpc-servicer 0.14.1, over a
random model: ``vllm serve MODEL --grpc --max-model-len 128 --dtype float32
--enforce-eager --block-size 32 --served-model-name tiny``, asked by
``tests.serving.reference_client``. Facts of a message do not depend on the model, so
ours may run the null executor. Over the same weights, in float32, our torch executor
gave the reference's greedy ids in every case that both answer and no line below names.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from tests.hybrid.cli_stand import write_tiny_model
from tests.serving.answer_facts import Facts
from tests.serving.reference_client import ReferenceClient
from tests.serving.serve_process import addresses, started

INVALID: Final[Facts] = {"status": "INVALID_ARGUMENT"}


def whole(prompt_tokens: int = 5) -> Facts:
    """One complete of four tokens that the limit ended."""
    return {
        "streamed": False,
        "finish_reason": "length",
        "matched": None,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 4,
        "ids_equal_counts": True,
        "logprobs": None,
        "prompt_logprobs": None,
    }


@cache
def reference() -> dict[str, Facts]:
    """What vLLM's server said, by case."""
    path = Path(__file__).with_name("reference_answers.json")
    answers: dict[str, Facts] = json.loads(path.read_text("utf-8"))
    return answers


DIFFERENCES: Final[dict[str, Facts]] = {
    # vLLM draws one sample twice and refuses to: equal answers are no fault to us.
    "n 2, greedy": {"0": whole(), "1": whole()},
    # The reference drops the field. We cut, by what the protocol says of it.
    "truncated to 2": {"0": whole(2)},
    "truncated to what fits": {"0": whole(124)},
    "truncated to 0": INVALID,
    "truncated to -2": INVALID,
    # OpenAI's limits, -100 to 100; vLLM has none here.
    "bias 1000": INVALID,
    # A request without an id could not be aborted, nor found in a log.
    "request id missing": INVALID,
    # "Off" is no constraint.
    "json_object false": {"0": whole()},
    # No model of ours embeds; of vLLM's, this one does not.
    "Embed": {"status": "UNIMPLEMENTED"},
    # A prompt that fills the context leaves no room for one token.
    "GetModelInfo": reference()["GetModelInfo"] | {"max_req_input_len": 127},
    # The name that the protocol has for servers of it; the reference says nothing.
    "GetServerInfo": reference()["GetServerInfo"] | {"server_type": "vllm-grpc"},
}
"""Our answer where it is not the reference's, and why."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Facts]:
    """What our server says, by case."""
    folder = tmp_path_factory.mktemp("server")
    model = write_tiny_model(folder / "model")
    options = ["-m", str(model), "--served-model-name", "tiny"]
    limits = ["--max-model-len", "128", "--block-size", "32", "--num-kv-blocks", "64"]
    with (
        started(folder, "--port", "0", *options, *limits) as server,
        grpc.insecure_channel(addresses(server)["grpc"]) as channel,
    ):
        answers = ReferenceClient(channel).facts()
        # As it went over the wire once: tuples are lists.
        read: dict[str, Facts] = json.loads(json.dumps(answers))
        return read


@pytest.mark.parametrize("case", sorted(reference()))
def test_answers_are_the_references_but_for_what_is_named(
    case: str, ours: dict[str, Any]
) -> None:
    """Every fact, or the status; a difference that is named must be one."""
    expected = DIFFERENCES.get(case, reference()[case])
    assert ours[case] == expected
    assert (case in DIFFERENCES) == (ours[case] != reference()[case])


def test_both_were_asked_the_same(ours: dict[str, Any]) -> None:
    """No case is missing on either side, and no difference is of an unknown case."""
    assert ours.keys() == reference().keys()
    assert DIFFERENCES.keys() <= ours.keys()
