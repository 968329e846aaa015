"""Writes a GGUF that holds a tokenizer only, and converts it."""

from collections.abc import Callable
from pathlib import Path

import gguf

from hybrid.backends.checkpoint.gguf_header import read_gguf_header
from hybrid.backends.checkpoint.gguf_tokenizer_files import write_gguf_tokenizer

Describe = Callable[[gguf.GGUFWriter], None]


def write(tmp_path: Path, describe: Describe, arch: str = "llama") -> Path:
    """Write a GGUF with a tokenizer and nothing else, and convert that tokenizer."""
    path = tmp_path / "tokenizer.gguf"
    writer = gguf.GGUFWriter(path, arch)
    describe(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    directory = tmp_path / "tokenizer"
    directory.mkdir(exist_ok=True)
    write_gguf_tokenizer(read_gguf_header(path), directory)
    return directory
