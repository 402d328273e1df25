"""A file that is no kubeconfig is named in one line, whatever it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from controllers.runtime.credentials import load_api_client
from controllers.runtime.errors import Terminal


@pytest.mark.parametrize("text", ["", "a word", "- 1", "contexts: 7\ncurrent-context: x\n", "{", "\x00", "current-context: [1]"])
async def test_a_file_of_another_kind_is_named_as_the_cause(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)

    with pytest.raises(Terminal, match="no usable Kubernetes credentials") as caught:
        await load_api_client(str(path))

    assert caught.value.reason == "NoCredentials"
