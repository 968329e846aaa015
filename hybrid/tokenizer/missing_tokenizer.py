"""Why a directory gave no tokenizer, in words that say what to do."""

from pathlib import Path


def explain_missing(path: Path, error: Exception) -> str:
    """Tell files that are not there from files that are broken.

    Args:
        path: the directory.
        error: whatever transformers raised.
    """
    if any(path.glob("tokenizer*")) or any(path.glob("vocab*")):
        return f"{type(error).__name__}: {error}"
    # transformers names what it tried instead; compilers leave the files behind.
    return (
        "there is no tokenizer.json; copy it from the checkpoint, with "
        "tokenizer_config.json and generation_config.json, or set "
        "skip_tokenizer_init=True for token ids"
    )
