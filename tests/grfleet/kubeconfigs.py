"""Kubeconfigs for the tests of commands that meet a cluster which cannot be reached, or is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def kubeconfig_of(folder: Path, **cluster: Any) -> Path:
    """A kubeconfig with one context, `now`, without credentials."""
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "now", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "now",
            }
        )
    )
    return path
