"""What a server and its clients must agree on, beside the protocol's messages."""
