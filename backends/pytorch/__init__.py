"""The torch executor: transformers modelling code over our paged KV pool."""
