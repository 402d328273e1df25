"""docs/physics.md quotes errors and constants; they are those of the code."""

import re
from pathlib import Path

import pytest

from simulator.physics.accelerator import known_accelerators, load_accelerator
from simulator.physics.fidelity import Row, hstu_b200, hstu_l20, hstu_l20_across_batches, markdown, rows
from simulator.physics.fitting import works_of
from simulator.physics.model_shape import HSTU_PUBLISHED, QWEN3_1_7B
from simulator.physics.published import load_table
from simulator.physics.reload import break_even_tokens
from simulator.physics.service import ServiceLaw

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "physics.md").read_text()
FOUND = rows()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@pytest.mark.parametrize("row", FOUND, ids=lambda row: row.law)
def test_each_row_of_the_table_of_errors_is_what_the_code_computes(row: Row) -> None:
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {row.law} |"))
    computed = cells(markdown([row]).splitlines()[2])
    for said, now in zip(cells(line), computed, strict=True):
        if said.endswith("%"):
            assert float(said[:-1]) == pytest.approx(float(now[:-1]), abs=0.2), line
        else:
            assert said == now


def test_the_table_of_errors_has_no_other_rows() -> None:
    table = PAGE.split("## How right it is")[1].split("\n\nThe points")[0]
    assert [cells(line)[0] for line in table.splitlines() if line.startswith("| ")][1:] == [row.law for row in FOUND]


def test_errors_quoted_in_the_text_are_those_of_the_code() -> None:
    assert hstu_l20().group_error == pytest.approx(0.079, abs=0.002)
    across = hstu_l20_across_batches()
    assert across[8] == pytest.approx(0.088, abs=0.002)
    assert across[1] == pytest.approx(0.28, abs=0.01)
    assert hstu_b200().worst == pytest.approx(0.27, abs=0.01)


def test_the_baseline_that_is_not_matched_is_quoted_as_it_is() -> None:
    law = ServiceLaw(accelerator=load_accelerator("l20"), shape=HSTU_PUBLISHED)
    took = sum(law.compute_ms(works_of(8, history=step * 256, candidates=256)) for step in range(1, 17))
    assert took == pytest.approx(526, abs=1)
    assert load_table("hstu_l20_end_to_end").rows[-1]["baseline_ms"] == pytest.approx(412, abs=1)


def test_the_table_of_accelerators_names_each_profile_with_its_rate() -> None:
    for name in known_accelerators():
        said = re.search(rf"^\| `{name}` \| ([\d .]+) TFLOP/s", PAGE, re.MULTILINE)
        assert said is not None, name
        assert load_accelerator(name).flops_per_second / 1e12 == pytest.approx(float(said[1].replace(" ", "")), rel=0.005)


def test_break_even_lengths_quoted_in_the_text_are_those_of_the_profiles() -> None:
    for name, tokens in (("l20", 1500), ("a100", 9000), ("h100", 15_000)):
        device = load_accelerator(name)
        for shape, expected in ((HSTU_PUBLISHED, tokens), (QWEN3_1_7B, 0)):
            law = ServiceLaw(accelerator=device, shape=shape)
            at = break_even_tokens(law, bytes_per_second=device.to_device_bytes_per_second)
            assert at == pytest.approx(expected, rel=0.04)
