"""Model files: safetensors directories and GGUF. No executor, no tokenizer logic."""
