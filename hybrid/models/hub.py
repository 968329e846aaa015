"""A checkpoint from the Hugging Face hub, through huggingface_hub's own cache."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hybrid.scheduler.errors import ModelNotFound

if TYPE_CHECKING:
    # At run time it would bring numpy along.
    from hybrid.backends.interface import ProgressCallback

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WANTED: Final = [
    "*.json",
    "*.safetensors",
    "*.model",
    "*.jinja",
    "merges.txt",
    "vocab.txt",
]
_UNWANTED: Final = ["consolidated*", "*/*"]
"""The same weights in other shapes: a plain snapshot would double the download."""


def is_hub_id(name: str) -> bool:
    """Whether a name has the shape ``owner/name``."""
    return _HUB_ID.fullmatch(name) is not None


def fetch_from_hub(
    name: str,
    *,
    revision: str | None = None,
    progress: "ProgressCallback | None" = None,
) -> Path:
    """Fetch a model's config, weights and tokenizer; returns the snapshot's folder.

    Without a network the snapshot fetched last is used.

    Raises:
        ModelNotFound: huggingface_hub is absent, or the hub has no such model, refuses
            it, or cannot be reached; one line says which.
    """
    try:
        import huggingface_hub  # noqa: PLC0415 - heavy, and an extra
    except ImportError as error:
        raise ModelNotFound(
            f"{name}: huggingface_hub is not installed; "
            "pip install 'hybrid-llm-engine[torch]' brings it"
        ) from error
    try:
        folder = huggingface_hub.snapshot_download(
            name,
            revision=revision,
            allow_patterns=_WANTED,
            ignore_patterns=_UNWANTED,
            tqdm_class=_progress_class(name, progress),
        )
    except (OSError, ValueError) as error:
        # The hub's own errors, those of its transport and of a full disk.
        raise ModelNotFound(f"{name}: {_reason(error)}") from error
    except Exception as error:
        if not type(error).__module__.startswith(
            ("huggingface_hub", "httpx", "httpcore")
        ):
            raise
        raise ModelNotFound(f"{name}: {_reason(error)}") from error
    return Path(folder)


def _reason(error: Exception) -> str:
    kind = type(error).__name__
    reasons = {
        "RepositoryNotFoundError": "the Hugging Face hub has no such model, or it is "
        "private and you are not logged in",
        "GatedRepoError": "the Hugging Face hub lets only those fetch it who accepted "
        "its terms and are logged in",
        "RevisionNotFoundError": "the Hugging Face hub has no such revision of it",
        "LocalEntryNotFoundError": "not in the Hugging Face cache, and the hub cannot "
        "be reached",
        "OfflineModeIsEnabled": "not in the Hugging Face cache, and HF_HUB_OFFLINE is "
        "set",
    }
    text = str(error).strip().splitlines()
    return reasons.get(kind, f"{kind}: {text[0] if text else 'no message'}")


def _progress_class(name: str, progress: "ProgressCallback | None") -> Any:
    """Make the class of bars that huggingface_hub counts with; ours draw nothing."""
    from tqdm.std import tqdm  # type: ignore[import-untyped]  # noqa: PLC0415 - as above

    most = 0

    class Bar(tqdm):  # type: ignore[misc]
        """Counts without drawing; hands bytes on."""

        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **{**options, "disable": True})
            self._counts_bytes = options.get("unit") == "B"
            self._done = 0

        def update(self, n: float | None = 1) -> None:
            """Count, for disabled bars do not."""
            nonlocal most
            self._done += int(n or 0)
            total = int(self.total or 0)
            # Two bars count bytes, on the wire and on disk: the one ahead is told.
            if self._counts_bytes and progress is not None and most < self._done:
                most = self._done
                progress(f"fetch {name}", min(most, total), total)

    return Bar
