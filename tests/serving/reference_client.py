"""Asks any server of ``vllm.grpc.engine.VllmEngine`` the same questions.

    python -m tests.serving.reference_client HOST:PORT [--ids]

Prints as JSON what it answers: facts that do not depend on the model, and the codes of
its refusals; with ``--ids`` the ids of greedy answers instead. Its output from vLLM's
own server is ``reference_answers.json`` beside this file.

The server's model must have a context of 128 tokens and the 258 ids of the byte-level
tokenizer that ``tests.hybrid.cli_stand.write_tiny_model`` writes.
"""

import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Callable
from itertools import count
from typing import Any, Final

import grpc
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc
from smg_grpc_proto.generated import common_pb2

from tests.serving.answer_facts import Facts, answer_facts, ids_of
from tests.serving.reference_cases import PROMPT, Case, make_cases

TIMEOUT_S: Final = 60
NUM_ABORTS: Final = 50
"""Attempts to abort an answer before it has ended by itself."""
LONG: Final = {"max_tokens": 120}
DEFAULTS: Final[Case] = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True}
_REQUEST_FIELDS: Final = ("request_id", "stream", "data_parallel_rank")


class ReferenceClient:
    """Puts the questions to one server."""

    def __init__(self, channel: Any) -> None:
        self._stub: Final = pb_grpc.VllmEngineStub(channel)
        self._numbers: Final = count()
        self._archive: Final = list(
            self._stub.GetTokenizer(common_pb2.GetTokenizerRequest(), timeout=TIMEOUT_S)
        )

    def facts(self) -> dict[str, Facts]:
        """What is true of every answer, by case."""
        told = {
            name: self._told(lambda case=case: answer_facts(self._ask(case)))
            for name, case in self._cases().items()
        }
        return told | {
            "abort, stream": self._aborted(stream=True),
            "abort, whole": self._aborted(stream=False),
            "abort of nobody": self._told(self._abort_nobody),
            "one id twice": self._told(self._one_id_twice),
            "Embed": self._told(self._embed),
            "GetModelInfo": self._told(self._model_info),
            "GetServerInfo": self._told(self._server_info),
            "GetLoads": self._told(self._loads),
            "HealthCheck": self._told(self._health),
            "GetTokenizer": self._tokenizer_facts(),
        }

    def ids(self) -> dict[str, list[int]]:
        """The greedy answers, by case; they depend on the model."""
        return {
            name: ids_of(getattr(response, response.WhichOneof("response")))
            for name, case in self._cases().items()
            if "n" not in case and "temperature" not in case and "stream" not in case
            for response in self._answers_of(case)
        }

    def _cases(self) -> dict[str, Case]:
        files = zipfile.ZipFile(io.BytesIO(b"".join(p.data for p in self._archive)))
        vocabulary = json.loads(files.read("tokenizer.json"))["model"]["vocab"]
        return make_cases(vocabulary["a"])

    def _answers_of(self, case: Case) -> list[Any]:
        try:
            return list(self._ask(case))
        except grpc.RpcError:
            return []

    def _ask(self, case: Case) -> Any:
        return self._stub.Generate(self._request(case), timeout=TIMEOUT_S)

    def _request(self, case: Case) -> Any:
        values = {"request_id": f"case-{next(self._numbers)}", **DEFAULTS, **case}
        prompt = values.pop("prompt", PROMPT)
        own = {name: values.pop(name) for name in _REQUEST_FIELDS if name in values}
        if isinstance(prompt, str):
            own["text"] = prompt
        elif prompt is not None:
            own["tokenized"] = pb.TokenizedInput(input_ids=prompt)
        sampling = {name: value for name, value in values.items() if value is not None}
        return pb.GenerateRequest(**own, sampling_params=sampling)

    @staticmethod
    def _told(call: Callable[[], Facts]) -> Facts:
        """The facts, or the code of the status by which the call failed."""
        try:
            return call()
        except grpc.RpcError as error:
            return {"status": error.code().name}  # type: ignore[attr-defined]

    def _aborted(self, *, stream: bool) -> Facts:
        """Abort an answer in the middle; some attempts may come too late."""
        for _ in range(NUM_ABORTS):
            request = self._request({**LONG, "stream": stream})
            call = self._stub.Generate(request, timeout=TIMEOUT_S)
            messages = [next(call)] if stream else []
            self._stub.Abort(
                pb.AbortRequest(request_ids=[request.request_id]), timeout=TIMEOUT_S
            )
            messages += list(call)
            complete = messages[-1].complete
            if complete.finish_reason != "length":
                break
        facts = answer_facts(messages)["0"]
        return {
            "status": call.code().name,
            **{name: facts[name] for name in ("streamed", "finish_reason", "matched")},
            "is_shorter": facts["completion_tokens"] < LONG["max_tokens"],
            "ids_equal_counts": facts["ids_equal_counts"],
        }

    def _abort_nobody(self) -> Facts:
        self._stub.Abort(pb.AbortRequest(request_ids=["nobody"]), timeout=TIMEOUT_S)
        return {"status": "OK"}

    def _one_id_twice(self) -> Facts:
        calls = [self._ask({"request_id": "twice", **LONG}) for _ in range(2)]
        return {str(place): answer_facts(call) for place, call in enumerate(calls)}

    def _embed(self) -> Facts:
        request = pb.EmbedRequest(request_id="e", tokenized={"input_ids": PROMPT})
        self._stub.Embed(request, timeout=TIMEOUT_S)
        return {"status": "OK"}

    def _model_info(self) -> Facts:
        info = self._stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=TIMEOUT_S)
        return {
            "is_generation": info.is_generation,
            "max_context_length": info.max_context_length,
            "vocab_size": info.vocab_size,
            "served_model_name": info.served_model_name,
            "model_type": info.model_type,
            "eos_token_ids": list(info.eos_token_ids),
            "pad_token_id": info.pad_token_id,
            "bos_token_id": info.bos_token_id,
            "max_req_input_len": info.max_req_input_len,
            "has_path": info.tokenizer_path == info.model_path != "",
        }

    def _server_info(self) -> Facts:
        info = self._stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=TIMEOUT_S)
        return {
            "active_requests": info.active_requests,
            "is_paused": info.is_paused,
            "server_type": info.server_type,
            "data_parallel_size": info.data_parallel_size,
            "constrained_decoding_start": info.constrained_decoding_start,
            "has_limits": info.max_num_seqs > 0 and info.block_size > 0,
        }

    def _loads(self) -> Facts:
        answer = self._stub.GetLoads(pb.GetLoadsRequest(), timeout=TIMEOUT_S)
        (load,) = answer.loads
        return {
            "dp_rank_count": answer.dp_rank_count,
            "num_total_reqs": load.num_total_reqs,
            "has_limits": load.max_total_num_tokens > 0
            and load.max_running_requests > 0,
        }

    def _health(self) -> Facts:
        answer = self._stub.HealthCheck(pb.HealthCheckRequest(), timeout=TIMEOUT_S)
        return {"healthy": answer.healthy}

    def _tokenizer_facts(self) -> Facts:
        whole = b"".join(piece.data for piece in self._archive)
        digests = [piece.sha256 for piece in self._archive]
        names = zipfile.ZipFile(io.BytesIO(whole)).namelist()
        needed = ("tokenizer.json", "tokenizer_config.json", "config.json")
        return {
            "digest_is_last": digests
            == [""] * (len(digests) - 1) + [hashlib.sha256(whole).hexdigest()],
            "names": [name for name in needed if name in names],
        }


def main(arguments: list[str]) -> None:
    """Print what the server at an address says."""
    address, *options = arguments
    with grpc.insecure_channel(address) as channel:
        client = ReferenceClient(channel)
        answers = client.ids() if "--ids" in options else client.facts()
    print(json.dumps(answers, indent=1, sort_keys=True))  # noqa: T201 - its result


if __name__ == "__main__":
    main(sys.argv[1:])
