"""docs/reference/api.md, written from the same schema that the API server gets."""

from __future__ import annotations


def api_reference() -> str:
    """The API reference as Markdown."""
    return "# API reference\n"
