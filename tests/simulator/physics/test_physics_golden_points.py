"""The laws against published points. Each table in simulator/physics/data/published names repository, commit, file and how it was
read; a failing case prints that source. What was fitted on which points is in docs/physics.md and held by test_physics_page.py.
"""

import re
from collections import Counter

import pytest

from simulator.physics.accelerator import load_accelerator
from simulator.physics.fidelity import (
    STACKS,
    decode_h100,
    hstu_l20,
    hstu_l20_end_to_end,
    overlap,
    prefill_h100,
    rows,
    stress_h100,
)
from simulator.physics.fitting import works_of
from simulator.physics.model_shape import HSTU_PUBLISHED, QWEN3_1_7B
from simulator.physics.published import Table, load_table
from simulator.physics.service import ServiceLaw
from simulator.physics.sourced import names_in
from simulator.physics.transfer import Direction, load_transfer


def cases(name: str) -> list[object]:
    """One case a row: the table (with its source), the row, and an id of the row's own numbers."""
    table = load_table(name)
    return [pytest.param(table, row, id="-".join(str(cell) for cell in row.values())) for row in table.rows]


def near(predicted: float, published: object, table: Table, *, percent: float) -> None:
    error = predicted / float(str(published)) - 1
    assert abs(error) <= percent / 100, f"{error:+.1%} of {published} ms; {table.source}; {table.notes}"


@pytest.mark.parametrize(("table", "row"), cases("hstu_l20"))
def test_hstu_on_l20_lies_within_ten_percent_of_every_published_bar(table: Table, row: dict[str, int]) -> None:
    batch = works_of(row["batch"], history=row["history_tokens"], cached=row["cached_tokens"], candidates=row["candidate_tokens"])
    law = ServiceLaw(accelerator=load_accelerator("l20"), shape=HSTU_PUBLISHED)
    near(law.compute_ms(batch), row["published_ms"], table, percent=10)


def test_the_published_bars_are_all_there_at_both_batch_sizes() -> None:
    # One case a row: a table that had lost its rows would pass.
    assert Counter(row["batch"] for row in load_table("hstu_l20").rows) == {1: 21, 8: 21}
    assert len(load_table("decoder_h100").rows) == 8


@pytest.mark.parametrize(("table", "row"), cases("decoder_h100"))
def test_decoder_prefill_and_beam_decode_lie_within_fifteen_percent(table: Table, row: dict[str, int]) -> None:
    law = ServiceLaw(accelerator=load_accelerator("h100"), shape=QWEN3_1_7B)
    context, batch = row["context_tokens"], row["batch"]
    near(law.compute_ms(works_of(batch, history=context)), row["prefill_ms"], table, percent=15)
    near(law.decode_ms(context_tokens=context, beams=row["beams"], batch=batch), row["decode_ms"], table, percent=15)


@pytest.mark.parametrize("stack", sorted(STACKS))
def test_host_transfers_lie_within_ten_percent_of_every_published_point(stack: str) -> None:
    table, cost = load_table(f"transfer_{stack}"), load_transfer(stack, load_accelerator(STACKS[stack]))
    assert len(table.rows) == 6
    for row in table.rows:
        near(cost.transfer_ms(Direction(row["direction"]), int(row["bytes"])), row["published_ms"], table, percent=10)


def test_end_to_end_passes_on_l20_at_four_batch_sizes_lie_within_ten_percent() -> None:
    row = hstu_l20_end_to_end()
    assert [point["batch"] for point in row.table.rows] == [1, 2, 4, 8]
    assert row.worst < 0.10, row.table.source


def test_bursts_of_offloads_that_no_constant_was_fitted_on_lie_within_sixteen_percent() -> None:
    assert stress_h100().fitted == 0
    assert stress_h100().worst < 0.16


def test_share_hidden_by_layerwise_loading_is_held_out_and_within_four_points() -> None:
    assert overlap().fitted == 0
    assert overlap().worst < 0.04


def test_bars_left_out_of_the_fit_are_predicted_as_well_as_those_in_it() -> None:
    row = hstu_l20()
    assert (row.worst_left_out or 1.0) < 0.10
    assert (row.group_error or 1.0) < 0.10, "all bars of one history length left out together"
    for decoder in (prefill_h100(), decode_h100()):
        assert (decoder.worst_left_out or 1.0) < 0.15


def test_the_constants_in_the_profiles_are_those_of_the_fit() -> None:
    l20, h100 = load_accelerator("l20"), load_accelerator("h100")
    for row, device, layers in ((hstu_l20(), l20, 8), (prefill_h100(), h100, 28)):
        assert row.fit is not None
        launch_ms, ms_per_flop = row.fit.constants
        assert device.launch_ms_per_layer * layers == pytest.approx(launch_ms, rel=0.005)
        assert device.flops_per_second == pytest.approx(1e3 / ms_per_flop, rel=0.005)
    fitted = hstu_l20().fit
    assert fitted is not None
    assert fitted.searched == l20.serial_query_tokens


def test_every_other_fitted_constant_reproduces_the_errors_of_its_fit() -> None:
    for row in rows():
        if row.fit is not None:
            assert row.errors == pytest.approx(row.fit.errors, abs=0.002), row.law


@pytest.mark.parametrize("name", names_in("published"))
def test_every_published_table_names_its_source_and_how_it_was_read(name: str) -> None:
    table = load_table(name)
    assert all((table.rows, table.summary, table.notes))
    assert re.search(r"commit [0-9a-f]{8}, \S+\.md", table.source) or "measured for grfleet" in table.source
