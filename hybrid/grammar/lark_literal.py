"""How a text is spelled in a Lark grammar."""

import json


def lark_literal(text: str) -> str:
    """``text`` in quotes, as llguidance's Lark reads it: JSON, and DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")
