"""How a client reaches its server, is let in, and leaves nothing behind."""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from hybrid import EngineClosed, HybridEngine, Overloaded, SamplingParams
from hybrid.client import (
    AsyncHybridClient,
    ClientOptions,
    HybridClient,
    RetryPolicy,
    RpcFailed,
    TlsOptions,
)
from hybrid.client.client_options import TOKEN_VARIABLE
from hybrid.serving.admission import RETRY_AFTER_S, AdmissionLimits
from hybrid.serving.front_door import FrontDoor
from hybrid.testing import check_whole
from tests.hybrid.null_stand import HeldExecutor, make_engine
from tests.serving.certificates import Identity, make_authority, sign
from tests.serving.client_stand import (
    IDS,
    PROMPT,
    ScriptedService,
    Service,
    answers,
    running_script,
    running_service,
    wait_until,
)
from tests.serving.door_stand import with_door
from tests.serving.service_stand import TIMEOUT_S, until

ONCE = RetryPolicy(max_retries=0)
LONG = SamplingParams(max_tokens=100, ignore_eos=True, detokenize=False)


class Keys:
    """Two authorities, a server and a client."""

    def __init__(self, folder: Path) -> None:
        self.authority = make_authority(folder, "authority")
        self.stranger = make_authority(folder, "stranger")
        self.server = sign(folder, "server", self.authority)
        self.client = sign(folder, "client", self.authority)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """Made once: openssl takes a while."""
    return Keys(tmp_path_factory.mktemp("keys"))


def trusting(authority: Identity, client: Identity | None = None) -> ClientOptions:
    """A client that speaks TLS."""
    own = {} if client is None else {"cert": client.cert, "key": client.key}
    return ClientOptions(tls=TlsOptions(ca=authority.cert, **own), retry=ONCE)


async def num_tokens(door: FrontDoor, options: ClientOptions) -> int:
    """The length of an answer; by both clients, which agree."""
    params = SamplingParams(max_tokens=3, ignore_eos=True)

    def ask() -> int:
        with HybridClient(door.address, options) as client:
            return len(client.generate(PROMPT, params)[0].token_ids)

    async with AsyncHybridClient(door.address, options) as client:
        (answer,) = await client.generate(PROMPT, params)
    assert await asyncio.to_thread(ask) == len(answer.token_ids)
    return len(answer.token_ids)


def test_tls(keys: Keys) -> None:
    """A server is believed if the right authority has signed it."""

    async def body(door: FrontDoor) -> None:
        assert await num_tokens(door, trusting(keys.authority)) == 3
        for options in (trusting(keys.stranger), ClientOptions(retry=ONCE)):
            with pytest.raises(EngineClosed):
                await num_tokens(door, options)

    with_door(body, tls_cert=keys.server.cert, tls_key=keys.server.key)


def test_mutual_tls(keys: Keys) -> None:
    """A client shows its own certificate where that is asked for."""

    async def body(door: FrontDoor) -> None:
        assert await num_tokens(door, trusting(keys.authority, keys.client)) == 3
        with pytest.raises(EngineClosed):
            await num_tokens(door, trusting(keys.authority))

    with_door(
        body,
        tls_cert=keys.server.cert,
        tls_key=keys.server.key,
        tls_client_ca=keys.authority.cert,
    )


def test_a_token_lets_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file or the environment, the file first; a wrong one does not help."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("s3cret\n", "utf-8")
    wrong.write_text("guess", "utf-8")

    async def body(door: FrontDoor) -> None:
        for options in (
            ClientOptions(retry=ONCE),
            ClientOptions(token_file=wrong, retry=ONCE),
        ):
            with pytest.raises(RpcFailed) as caught:
                await num_tokens(door, options)
            assert caught.value.code == "UNAUTHENTICATED"
        assert await num_tokens(door, ClientOptions(token_file=right)) == 3
        monkeypatch.setenv(TOKEN_VARIABLE, "s3cret")
        assert await num_tokens(door, ClientOptions()) == 3
        with pytest.raises(RpcFailed):
            await num_tokens(door, ClientOptions(token_file=wrong, retry=ONCE))

    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with_door(body, tokens=["s3cret"])


def held() -> tuple[HybridEngine, HeldExecutor]:
    """An engine that stands still after its first tokens."""
    executor = HeldExecutor(num_free_steps=3)
    return make_engine(executor=executor), executor


def check_freed(service: Service, engine: HybridEngine) -> None:
    """The request is over as aborted, and every block is back."""
    assert service.host.num_requests == 0
    assert engine.stats().requests_finished_total == {"abort": 1}
    check_whole(engine)


def test_leaving_a_stream_frees_the_servers_blocks() -> None:
    """By closing the iterator; the server draws nothing for nobody."""
    engine, executor = held()
    with running_service(engine) as service:
        with HybridClient(service.address) as client:
            parts = client.stream(PROMPT, LONG)
            next(parts)
            parts.close()
            wait_until(lambda: service.host.num_requests == 0)
        executor.let_go()
        wait_until(lambda: engine.stats().num_requests_running == 0)
        check_freed(service, engine)


def test_cancelling_a_task_frees_the_servers_blocks() -> None:
    """The same, for an answer that is not streamed."""
    engine, executor = held()

    async def main(service: Service) -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            AsyncHybridClient(service.address) as client,
        ):
            task = asyncio.create_task(client.generate(PROMPT, LONG))
            await until(lambda: engine.stats().generation_tokens_total > 0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: service.host.num_requests == 0)

    with running_service(engine) as service:
        asyncio.run(main(service), debug=True)
        executor.let_go()
        wait_until(lambda: engine.stats().num_requests_running == 0)
        check_freed(service, engine)


def test_an_abort_ends_anothers_answer() -> None:
    """By the id that the caller gave; what there was has come, and the end says why."""
    engine, executor = held()
    with running_service(engine) as service, HybridClient(service.address) as client:
        parts = client.stream(PROMPT, LONG, request_id="mine")
        next(parts)
        client.abort("not mine")
        client.abort("mine")
        executor.let_go()
        *_, last = parts
        assert last.finish_reason == "abort"
        # It was told before the step had ended.
        wait_until(lambda: engine.stats().num_requests_running == 0)
        check_freed(service, engine)


def test_a_full_server_says_when_to_come_back() -> None:
    """A client that will not wait so long is told; with room it is answered."""
    engine, executor = held()
    limits = AdmissionLimits(max_requests=1)
    impatient = ClientOptions(retry=RetryPolicy(max_wait_s=RETRY_AFTER_S / 2))
    with (
        running_service(engine, limits=limits) as service,
        HybridClient(service.address, impatient) as client,
    ):
        with closing(client.stream(PROMPT, LONG)) as parts:
            next(parts)
            with pytest.raises(Overloaded) as caught:
                client.generate(PROMPT, IDS)
            executor.let_go()
        assert caught.value.retry_after_s == RETRY_AFTER_S
        wait_until(lambda: service.host.num_requests == 0)
        assert client.generate(PROMPT, IDS)[0].token_ids


def connections(address: str) -> list[Any]:
    """This process's connections to a port."""
    port = int(address.rpartition(":")[2])
    found = psutil.Process().net_connections("tcp")
    return [c for c in found if c.raddr and c.raddr.port == port]


def test_no_connection_is_left() -> None:
    """Closing a client, however its calls ended, closes its channel."""
    with running_script(ScriptedService(answers(7))) as address:
        clients = [HybridClient(address) for _ in range(4)]
        for client in clients:
            client.generate(PROMPT, IDS)
            next(iter(client.stream(PROMPT, IDS)))
        assert connections(address)
        for client in clients:
            client.close()

        async def main() -> None:
            async with AsyncHybridClient(address) as client:
                await client.generate(PROMPT, IDS)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(main(), debug=True)
        wait_until(lambda: not connections(address))
