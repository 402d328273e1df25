"""How right the laws are: each against the published points, with what was fitted on what and the error on points left out.

`python -m simulator.physics` prints it; docs/physics.md quotes it and a test keeps the two the same.
"""

from dataclasses import dataclass, replace

import numpy as np

from simulator.physics.accelerator import load_accelerator
from simulator.physics.fitting import (
    Fit,
    decode_features,
    fit,
    growing_histories,
    hstu_batches,
    prefill_batches,
    service_features,
    transfer_features,
)
from simulator.physics.model_shape import HSTU_PUBLISHED, HSTU_PUBLISHED_B200, QWEN3_1_7B
from simulator.physics.published import Table, load_table
from simulator.physics.reload import hidden_share
from simulator.physics.service import ServiceLaw, Work
from simulator.physics.transfer import Direction, load_transfer

#: Embedding stage, KV management and Python of NVIDIA's example around the HSTU block; not part of the service law.
SURROUNDING_MS_PER_BATCH = 2.5

SERIAL_SEARCH = tuple(float(tokens) for tokens in range(32, 81, 2))
STACKS = {"flexkv_h100": "h100", "flexkv_h100_batched": "h100", "flexkv_l20": "l20"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One law against one table: relative errors of the shipped constants, and of fits that had not seen the point.

    Parameters
    ----------
    law, table : str
    errors : array
        Predicted / published - 1 with the constants that grfleet ships.
    fitted : int
        Constants that were fitted on these points; 0 means held out.
    fit : Fit, optional
        The repeated fit, absent where nothing was fitted.
    group_error : float, optional
        Largest error when whole groups of points (all of one history length) are left out.
    """

    law: str
    table: Table
    errors: np.ndarray
    fitted: int
    fit: Fit | None = None
    group_error: float | None = None

    @property
    def worst(self) -> float:
        return float(np.abs(self.errors).max())

    @property
    def mean(self) -> float:
        return float(np.abs(self.errors).mean())

    @property
    def worst_left_out(self) -> float | None:
        return None if self.fit is None else float(np.abs(self.fit.left_out).max())


def hstu_l20() -> Row:
    """HSTU on L20: every published bar of both batch sizes."""
    table, device = load_table("hstu_l20"), load_accelerator("l20")
    batches, published = hstu_batches(table), table.numbers("published_ms")
    features = service_features(device, HSTU_PUBLISHED, batches)
    by_length = fit(features, published, search=SERIAL_SEARCH, groups=table.numbers("history_tokens"))
    law = ServiceLaw(accelerator=device, shape=HSTU_PUBLISHED)
    return Row(
        law="service time, HSTU on L20",
        table=table,
        errors=np.array([law.compute_ms(batch) for batch in batches]) / published - 1.0,
        fitted=3,
        fit=fit(features, published, search=SERIAL_SEARCH),
        group_error=float(np.abs(by_length.left_out).max()),
    )


def hstu_l20_across_batches() -> dict[int, float]:
    """Largest error on the bars of one batch size when only those of the other were fitted on."""
    table = load_table("hstu_l20")
    sizes = np.array(table.numbers("batch"))
    features = service_features(load_accelerator("l20"), HSTU_PUBLISHED, hstu_batches(table))
    left_out = fit(features, table.numbers("published_ms"), search=SERIAL_SEARCH, groups=sizes.tolist()).left_out
    return {int(size): float(np.abs(left_out[sizes == size]).max()) for size in np.unique(sizes)}


def hstu_l20_end_to_end() -> Row:
    """HSTU on L20 end to end with cache: the law as fitted on the block bars, and one time a batch for all around it."""
    table, device = load_table("hstu_l20_end_to_end"), load_accelerator("l20")
    law, published = ServiceLaw(accelerator=device, shape=HSTU_PUBLISHED), table.numbers("published_ms")
    compute = [sum(law.compute_ms(batch) for batch in growing_histories(row)) for row in table.rows]
    batches = np.array(table.numbers("batches"))
    return Row(
        law="HSTU end to end on L20, cached",
        table=table,
        errors=(np.array(compute) + SURROUNDING_MS_PER_BATCH * batches) / published - 1.0,
        fitted=1,
        fit=fit(lambda _: batches[:, None], published, known=compute),
    )


def hstu_b200() -> Row:
    """HSTU on a device like B200: the bars without cache; the others show no cost of a cached prefix."""
    whole, device = load_table("hstu_b200"), load_accelerator("b200_like")
    table = replace(whole, rows=tuple(row for row in whole.rows if row["cached_tokens"] == 0))
    law = ServiceLaw(accelerator=device, shape=HSTU_PUBLISHED_B200)
    batches, published = hstu_batches(table), table.numbers("published_ms")
    return _service_row("service time, HSTU on B200, no cache", table, law, batches, published)


def prefill_h100() -> Row:
    """Prefill of a decoder on H100."""
    table, device = load_table("decoder_h100"), load_accelerator("h100")
    law = ServiceLaw(accelerator=device, shape=QWEN3_1_7B)
    batches, published = prefill_batches(table), table.numbers("prefill_ms")
    return _service_row("service time, decoder prefill on H100", table, law, batches, published)


def _service_row(name: str, table: Table, law: ServiceLaw, batches: list[list[Work]], published: list[float]) -> Row:
    """The service law with two fitted constants: launches, and the rate."""
    return Row(
        law=name,
        table=table,
        errors=np.array([law.compute_ms(batch) for batch in batches]) / published - 1.0,
        fitted=2,
        fit=fit(service_features(law.accelerator, law.shape, batches), published),
    )


def decode_h100() -> Row:
    """Beam decode on H100."""
    table, device = load_table("decoder_h100"), load_accelerator("h100")
    law, published = ServiceLaw(accelerator=device, shape=QWEN3_1_7B), table.numbers("decode_ms")
    predicted = [
        law.decode_ms(context_tokens=int(row["context_tokens"]), beams=int(row["beams"]), batch=int(row["batch"]))
        for row in table.rows
    ]
    return Row(
        law="beam decode on H100",
        table=table,
        errors=np.array(predicted) / published - 1.0,
        fitted=2,
        fit=fit(decode_features(device, QWEN3_1_7B, table), published),
    )


def transfer(stack: str, direction: Direction) -> Row:
    """One direction of one published copy path."""
    whole = load_table(f"transfer_{stack}")
    table = replace(whole, rows=tuple(row for row in whole.rows if row["direction"] == direction))
    cost, published = load_transfer(stack, load_accelerator(STACKS[stack])), table.numbers("published_ms")
    sizes = table.numbers("bytes")
    return Row(
        law=f"transfer, {stack}, {direction.replace('_', ' ')}",
        table=table,
        errors=np.array([cost.transfer_ms(direction, int(size)) for size in sizes]) / published - 1.0,
        fitted=2,
        fit=fit(transfer_features(sizes), published),
    )


def stress_h100() -> Row:
    """Bursts of off-loads on H100, held out."""
    table = load_table("transfer_stress_h100")
    cost = load_transfer("flexkv_h100_batched", load_accelerator("h100"))
    predicted = [cost.transfer_ms(Direction.TO_HOST, int(size)) for size in table.numbers("bytes")]
    return Row(
        law="transfer, off-load bursts on H100",
        table=table,
        errors=np.array(predicted) / table.numbers("published_ms") - 1.0,
        fitted=0,
    )


def overlap() -> Row:
    """Share of a load that layer-wise computing hides, held out; errors are differences of shares, not relative."""
    table = load_table("layerwise_overlap")
    hidden = [
        hidden_share(load_ms=rho, compute_ms=1.0, layers=8, early_ms=early * rho / 8)
        for rho, early in zip(table.numbers("rho"), table.numbers("layers_early"), strict=True)
    ]
    return Row(
        law="hidden share of a layer-wise load",
        table=table,
        errors=np.array(hidden) - np.array(table.numbers("hidden_share")),
        fitted=0,
    )


def rows() -> list[Row]:
    """Every law that is held against something."""
    found = [hstu_l20(), hstu_l20_end_to_end(), hstu_b200(), prefill_h100(), decode_h100()]
    found += [transfer(stack, direction) for stack in STACKS for direction in Direction]
    return [*found, stress_h100(), overlap()]


def markdown(found: list[Row]) -> str:
    """The table of docs/physics.md."""
    head = "| law | points | fitted | worst | mean | worst, point left out |\n|---|---|---|---|---|---|\n"
    lines = [
        f"| {row.law} | {len(row.errors)} | {row.fitted or 'held out'} | {_percent(row.worst)} | {_percent(row.mean)}"
        f" | {_percent(row.worst_left_out)} |\n"
        for row in found
    ]
    return head + "".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"
