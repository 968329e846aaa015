"""One paged scheduler, any executor."""
