"""TensorRT-LLM's kernels, or what stands in for them, under our scheduler."""
