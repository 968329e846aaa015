"""Profiles of the engine's thread, begun and ended by clients."""

import pstats
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2 as pb

from tests.hybrid.null_stand import make_engine
from tests.serving.service_stand import Served, generate, refusal, request, serve

Code = grpc.StatusCode


async def start(served: Served, **fields: Any) -> Any:
    """Call StartProfile."""
    return await served.stub.StartProfile(pb.StartProfileRequest(**fields))


async def stop(served: Served) -> Any:
    """Call StopProfile."""
    return await served.stub.StopProfile(pb.StopProfileRequest())


def functions_in(path: Path) -> set[str]:
    """Names of the functions that a profile has seen."""
    stats: Any = pstats.Stats(str(path))
    return {name for _, _, name in stats.stats}


def test_a_profile_shows_the_engines_steps(tmp_path: Path) -> None:
    """What ran between start and stop, in the engine's thread; read by pstats."""

    async def body(served: Served) -> Any:
        assert (await start(served, activities=["CPU"])).success
        await generate(served, request([1, 2, 3], max_tokens=4))
        return await stop(served)

    answer = serve(make_engine(), body, profile_dir=tmp_path)
    assert answer.success
    path = Path(answer.message)
    assert path.parent == tmp_path.resolve()
    assert {"schedule", "execute", "sample", "update"} <= functions_in(path)


def test_profiles_are_taken_one_at_a_time(tmp_path: Path) -> None:
    """A second is not begun, and one that was not begun is not ended."""

    async def body(served: Served) -> list[bool]:
        answers = [
            await stop(served),
            await start(served),
            await start(served),
            await stop(served),
            await stop(served),
        ]
        return [answer.success for answer in answers]

    taken = serve(make_engine(), body, profile_dir=tmp_path)
    assert taken == [False, True, False, True, False]


def test_a_folder_within_the_directory_may_be_named(tmp_path: Path) -> None:
    """It is made; none outside is, by whatever way it is reached."""
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "out").symlink_to(tmp_path)

    async def body(served: Served) -> tuple[Any, list[grpc.aio.AioRpcError]]:
        refused = [
            await refusal(start(served, output_dir=name))
            for name in ("../elsewhere", "/elsewhere", "out/elsewhere")
        ]
        await start(served, output_dir="a/b")
        return await stop(served), refused

    answer, refused = serve(make_engine(), body, profile_dir=tmp_path / "profiles")
    assert Path(answer.message).parent == tmp_path / "profiles" / "a" / "b"
    for status in refused:
        assert status.code() is Code.INVALID_ARGUMENT
        assert "output_dir" in str(status.details())
    assert not list(tmp_path.glob("**/elsewhere"))


@pytest.mark.parametrize(
    "fields",
    [
        {"num_steps": 3},
        {"start_step": 1},
        {"record_shapes": True},
        {"profile_by_stage": True},
        {"activities": ["CPU", "GPU"]},
    ],
)
def test_what_it_cannot_show_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    """By the field, and nothing is begun."""

    async def body(served: Served) -> tuple[grpc.aio.AioRpcError, Any]:
        return await refusal(start(served, **fields)), await stop(served)

    status, answer = serve(make_engine(), body, profile_dir=tmp_path)
    assert status.code() is Code.INVALID_ARGUMENT
    assert next(iter(fields)) in str(status.details())
    assert not answer.success


def test_without_a_directory_none_is_taken() -> None:
    """UNIMPLEMENTED names the option: files are written where the operator says."""

    async def body(served: Served) -> list[grpc.aio.AioRpcError]:
        return [await refusal(start(served)), await refusal(stop(served))]

    for status in serve(make_engine(), body):
        assert status.code() is Code.UNIMPLEMENTED
        assert "--profile-dir" in str(status.details())
