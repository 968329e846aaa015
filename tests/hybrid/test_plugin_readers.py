"""A directory in another executor's own form: the error says whose."""

from pathlib import Path

import pytest

from hybrid import LLM, CheckpointError, ModelNotFound
from tests.hybrid.plugin_stand import EXECUTOR, Site, site

__all__ = ["site"]  # pytest finds the fixture here

READER = EXECUTOR.replace("CHANGES = {}", "CHANGES = {'model_files': ('mine.plan',)}")


def refusal(folder: Path, executor: str) -> CheckpointError:
    """Why an executor does not take a directory."""
    with pytest.raises(CheckpointError) as caught:
        LLM(str(folder), executor=executor)
    return caught.value


def test_who_reads_a_directory_is_named(site: Site, tmp_path: Path) -> None:
    """After what the chosen executor has to say of it, and of the same kind."""
    site.install(READER)
    (tmp_path / "mine.plan").touch()
    error = refusal(tmp_path, "null")
    assert isinstance(error, ModelNotFound)
    assert str(error) == (
        f"{tmp_path} is a directory without config.json and without GGUF; executor "
        "'mine' reads the mine.plan in it"
    )


def test_a_refusal_without_another_reader_is_the_executors_own(
    site: Site, tmp_path: Path
) -> None:
    """Neither an empty directory nor one of its own kind has a hint."""
    site.install(
        READER
        + """
    def load(self, *_):
        raise CheckpointError("torn")
    Mine.load = load
""",
        head="from hybrid import CheckpointError\n"
        "from hybrid.api import *\nhybrid_api_version = API_VERSION\n",
    )
    assert str(refusal(tmp_path, "null")).endswith("without GGUF")
    (tmp_path / "mine.plan").touch()
    assert str(refusal(tmp_path, "mine")) == "torn"


def test_a_home_that_is_not_there_is_what_is_said(site: Site) -> None:
    """Looking for readers hides nothing."""
    site.install(READER)
    with pytest.raises(ModelNotFound, match="no such home directory"):
        LLM("~no-such-user-at-all/m", executor="null")
