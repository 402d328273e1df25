"""The service law: how long a batch keeps an accelerator busy.

Operations (projections + attention) over one effective rate, but never faster than three floors: the slowest tile of queries that
one compute unit must walk alone (occupancy), the bytes that HBM must deliver (roofline), and the launches of every layer. Only
new tokens and candidates attend; a cached prefix is not computed again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.physics.accelerator import AcceleratorProfile
from simulator.physics.model_shape import Attention, ModelShape


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one request asks of the accelerator.

    Parameters
    ----------
    history_tokens : int
        Length of the user's history.
    cached_tokens : int
        Leading part of it whose keys and values (or state) are in HBM.
    candidate_tokens : int
        Items to score; each sees the whole history and is not cached.

    Raises
    ------
    ValueError
        For negative counts or more cached than there is.
    """

    history_tokens: int
    cached_tokens: int = 0
    candidate_tokens: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.cached_tokens <= self.history_tokens:
            raise ValueError(f"cached_tokens: {self.cached_tokens} is not within 0..{self.history_tokens}")
        if self.candidate_tokens < 0:
            raise ValueError(f"candidate_tokens: {self.candidate_tokens} must not be negative")

    @property
    def new_tokens(self) -> int:
        """Tokens that are computed: history that is not cached, and candidates."""
        return self.history_tokens - self.cached_tokens + self.candidate_tokens

    @property
    def pairs(self) -> float:
        """(query, key) pairs: (n - h) (h + (n - h) / 2) + c n."""
        new = self.history_tokens - self.cached_tokens
        return new * (self.cached_tokens + new / 2) + self.candidate_tokens * self.history_tokens


@dataclass(frozen=True, kw_only=True)
class Flops:
    """Operations of a batch by kind."""

    projection: float
    attention: float

    @property
    def total(self) -> float:
        return self.projection + self.attention


@dataclass(frozen=True, kw_only=True)
class ServiceLaw:
    """Service time of one model on one accelerator."""

    accelerator: AcceleratorProfile
    shape: ModelShape

    def flops(self, batch: Sequence[Work], *, padded_tokens: int | None = None) -> Flops:
        """Count operations. Padding is projected like tokens; attention kernels skip it.

        Parameters
        ----------
        batch : sequence of Work
        padded_tokens : int, optional
            New tokens of the whole batch after padding; none is added when absent.

        Raises
        ------
        ValueError
            When padding would remove tokens.
        """
        shape, tokens = self.shape, sum(work.new_tokens for work in batch)
        if padded_tokens is not None and padded_tokens < tokens:
            raise ValueError(f"padded_tokens: {padded_tokens} is below the {tokens} tokens of the batch")
        outputs = sum(1 for work in batch if work.new_tokens) if shape.vocabulary else 0
        return Flops(
            projection=float(
                shape.layers * shape.layer_flops_per_token * (tokens if padded_tokens is None else padded_tokens)
                + outputs * shape.output_flops
            ),
            attention=shape.layers * shape.layer_flops_per_pair * sum(work.pairs for work in batch),
        )

    def occupancy_floor_flops(self, batch: Sequence[Work]) -> float:
        """Attention that all units together could have done while one of them walks its tile over the longest history."""
        longest = max((work.history_tokens for work in batch if work.new_tokens), default=0)
        device, shape = self.accelerator, self.shape
        per_head = shape.layer_flops_per_pair / shape.heads
        return shape.layers * per_head * device.serial_query_tokens * longest * device.compute_units

    def memory_ms(self, batch: Sequence[Work]) -> float:
        """Milliseconds to read the weights once and every attended key and value once."""
        state = sum(self.shape.user_bytes(work.history_tokens) for work in batch if work.new_tokens)
        return (self.shape.weight_bytes + state) / self.accelerator.hbm_bytes_per_second * 1e3

    @property
    def launch_ms(self) -> float:
        """What the smallest batch costs."""
        return self.accelerator.launch_ms_per_layer * self.shape.layers

    def compute_ms(self, batch: Sequence[Work], *, padded_tokens: int | None = None) -> float:
        """Milliseconds of compute for one batch; 0 when nothing in it has to be computed.

        Source: docs/physics.md, "The law".
        """
        if not any(work.new_tokens for work in batch):
            return 0.0
        flops = self.flops(batch, padded_tokens=padded_tokens)
        attention = max(flops.attention, self.occupancy_floor_flops(batch))
        arithmetic_ms = (flops.projection + attention) / self.accelerator.flops_per_second * 1e3
        return self.launch_ms + max(arithmetic_ms, self.memory_ms(batch))

    def recompute_ms(self, work: Work, *, available_tokens: int) -> float:
        """Milliseconds that a request saves on an idle device when `available_tokens` of its history need no computing.

        Raises
        ------
        ValueError
            When less would be available than is cached already.
        """
        if available_tokens < work.cached_tokens:
            raise ValueError(f"available_tokens: {available_tokens} is below the {work.cached_tokens} cached")
        with_it = Work(
            history_tokens=work.history_tokens,
            cached_tokens=min(available_tokens, work.history_tokens),
            candidate_tokens=work.candidate_tokens,
        )
        return self.compute_ms([work]) - self.compute_ms([with_it])

    def decode_ms(self, *, context_tokens: int, beams: int, batch: int = 1, passes: int = 2) -> float:
        """Milliseconds of a beam decode after the prefill.

        The first token of an identifier comes from the prefill, so an identifier of three tokens takes two passes. A pass
        advances all beams of the batch together; they share the context's keys and values.

        Raises
        ------
        ValueError
            For a model without an output vocabulary, or counts below what a decode needs.
        """
        if self.shape.vocabulary < 1 or self.shape.attention is Attention.HSTU:
            raise ValueError("shape: a beam decode needs a decoder with a vocabulary")
        if min(context_tokens, beams, batch) < 1 or passes < 0:
            raise ValueError(f"context_tokens, beams and batch must be at least 1: {context_tokens}, {beams}, {batch}")
        device = self.accelerator
        flops = passes * self.pass_flops(context_tokens=context_tokens, beams=beams, batch=batch)
        read_ms = passes * self.shape.weight_bytes / device.hbm_bytes_per_second * 1e3
        return passes * device.decode_pass_ms + max(flops / device.decode_flops_per_second * 1e3, read_ms)

    def pass_flops(self, *, context_tokens: int, beams: int, batch: int) -> float:
        """Operations of one beam pass over a batch."""
        shape = self.shape
        per_beam = shape.layers * (shape.layer_flops_per_token + shape.layer_flops_per_pair * context_tokens)
        return float(batch * beams * (per_beam + shape.output_flops))
