"""Names of models, the cache, and how a model gets there."""

from .cache import cache_dir, converted_dir
from .catalog import KNOWN_MODELS, KnownModel
from .model_pull import find_local, pull
from .resolve import resolve_model

__all__ = [
    "KNOWN_MODELS",
    "KnownModel",
    "cache_dir",
    "converted_dir",
    "find_local",
    "pull",
    "resolve_model",
]
