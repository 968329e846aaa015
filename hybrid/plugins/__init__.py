"""What others add to the engine: hooks, descriptors, and the loader that finds them."""
