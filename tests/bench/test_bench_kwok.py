"""The benchmark of many pods at a size that tests can afford, on real controllers and fake nodes."""

from __future__ import annotations

import pytest

from bench.kwok import Sizes, measure

TINY = Sizes(nodes=3, pods=12, restarts=1, rest_seconds=1.0)


@pytest.mark.slow
@pytest.mark.usefixtures("kwok_parts")
def test_every_figure_of_the_operator_stands_beside_that_of_a_bare_watch_in_the_same_run() -> None:
    found = {result.name: result for result in measure(TINY, seed=1)}

    assert {name for name in found if name.startswith(("3 fake nodes", "12 pods: from scale 0"))}
    for name, result in found.items():
        if "operator's" in name or name.startswith("restart"):
            assert result.baseline is not None, name
        assert result.min <= result.value <= result.max, name
    assert found["12 pods arrive: operator's CPU to watch and keep them"].value < 5
    assert 0 < found["restart, 12 pods: RSS at most"].value < 1000
