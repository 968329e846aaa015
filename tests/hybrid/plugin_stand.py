"""Distributions with plugins, as pip leaves them: a module and its metadata."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from hybrid import LLM
from hybrid.api import API_VERSION, SamplingParams
from hybrid.plugins.loader import load_plugins
from hybrid.plugins.manager import PluginManager
from hybrid.plugins.plugin_record import PluginRecord
from hybrid.plugins.selection import PluginSelection

HEAD = f"from hybrid.api import *\nhybrid_api_version = {API_VERSION}\n"
EXECUTOR = """
    from dataclasses import replace
    from hybrid.backends.null.executor import CAPABILITIES, NullExecutor

    class Mine(NullExecutor):
        def capabilities(self):
            return replace(CAPABILITIES, name="mine", **CHANGES)

    CHANGES = {}

    @hookimpl
    def hybrid_register_executors(register):
        register(
            ExecutorDescriptor(
                name="mine",
                path="{module}:Mine",
                description="a test's",
                needs_model=False,
            )
        )
"""
"""Of an executor ``mine``: the null executor, its capabilities changed."""
_NUMBERS = count()


@dataclass(frozen=True, slots=True)
class Site:
    """A folder on ``sys.path`` that distributions are installed into."""

    folder: Path

    def install(
        self,
        source: str,
        *,
        name: str = "mine",
        distribution: str = "hybrid-mine",
        version: str = "1.2",
        head: str = HEAD,
    ) -> str:
        """Write one distribution with one plugin.

        Args:
            source: of the plugin's module; ``{module}`` stands for its name.
            name: of the entry point.
            distribution: its name.
            version: its version.
            head: what stands above ``source``.

        Returns:
            The module's name, new every time.
        """
        module = f"hybrid_test_plugin_{next(_NUMBERS)}"
        text = head + dedent(source).replace("{module}", module)
        (self.folder / f"{module}.py").write_text(text, encoding="utf-8")
        stem = distribution.replace("-", "_")
        metadata = self.folder / f"{stem}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n",
            "utf-8",
        )
        (metadata / "entry_points.txt").write_text(
            f"[hybrid.plugins]\n{name} = {module}\n", "utf-8"
        )
        return module

    def load(
        self, *, allowed: list[str] | None = None, disabled: tuple[str, ...] = ()
    ) -> PluginManager:
        """Load what is installed; by default only the built-ins and what is here."""
        names = None if allowed is None else tuple(allowed)
        return load_plugins(PluginSelection(names, disabled))


def record_of(manager: PluginManager, name: str = "mine") -> PluginRecord:
    """What became of the one plugin of a name."""
    (found,) = [r for r in manager.records if r.source.name == name]
    return found


def answer(**options: Any) -> tuple[int, ...]:
    """What a tiny engine answers."""
    params = SamplingParams(temperature=0, max_tokens=4)
    with LLM(num_kv_blocks=16, **({"executor": "null"} | options)) as llm:
        (output,) = llm.generate([[1, 2, 3]], params, use_tqdm=False)
    return output.outputs[0].token_ids


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site folder of the test's own; its modules are forgotten afterwards."""
    monkeypatch.delenv("HYBRID_PLUGINS", raising=False)
    monkeypatch.delenv("HYBRID_PLUGINS_DISABLED", raising=False)
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield Site(folder)
    for name in [n for n in sys.modules if n.startswith("hybrid_test_plugin_")]:
        del sys.modules[name]
