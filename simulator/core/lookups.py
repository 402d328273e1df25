"""The embedding stage of a request: which of its rows were sampled, what they met in the cache, and how many real rows missed."""

import numpy as np

from contract.engine import ItemPopularity
from contract.samples import KIND_EMB, SampleBuffer
from simulator.core.config import InstanceConfig
from simulator.core.emb_cache import EmbCache, MissRatio
from simulator.core.popularity import RowSampler, SamplerCache, sampled_row_keys
from simulator.core.randomness import binomial, seed_of, uniforms

_NOISE_STREAM = 0x2545_F491_4F6C_DD1D


class Refused(ValueError):
    """A request that this instance does not serve; the message names the field."""


class RowLookups:
    """Draws the rows of requests through the EMB cache and reports the sampled ones.

    Attributes
    ----------
    miss_ratio : float
        Share of the rows that miss, as of the last request; smoothed.
    """

    def __init__(self, config: InstanceConfig, *, emb: EmbCache, samples: SampleBuffer) -> None:
        self._config = config
        self._emb = emb
        self._samples = samples
        self._one_in = config.sampling.rows_one_in
        self._samplers = SamplerCache(self._one_in)
        self._miss_ratio = MissRatio()
        self.miss_ratio = 0.0

    def asked_by(self, tokens: int, per_token: int) -> int:
        """Return the rows that this many tokens look up; Refused when they are more than the instance serves."""
        rows = tokens * per_token
        if rows > self._config.max_rows_per_request:
            raise Refused(f"historyTokens, rowsPerToken: {rows} rows in one request, at most {self._config.max_rows_per_request}")
        return rows

    def sampler(self, popularity: ItemPopularity | None) -> RowSampler:
        """Return the sampler of a law, the configured one when absent; Refused when its catalogue is too large."""
        try:
            return self._samplers.get(popularity or self._config.popularity)
        except ValueError as error:
            raise Refused(str(error)) from error

    def missed(self, request_id: str, sampler: RowSampler, *, rows: int, asked: int, time_us: int) -> int:
        """Look up the last `asked` of a request's `rows` and return how many of them missed."""
        seed = seed_of(request_id)
        touched = sampler.draw(seed, rows=rows, skip=rows - asked)
        misses = self._emb.access(touched.tolist())
        keys = sampled_row_keys(touched.astype(np.uint64), self._one_in)
        self._samples.extend(kind=KIND_EMB, size=1, keys=keys, time_us=time_us)
        ratio = self.miss_ratio = self._miss_ratio.update(misses=misses, expected=asked / self._one_in)
        if self._one_in == 1:
            return misses
        if not self._emb.holds_rows:
            # All miss. The sample would say so many per cent fewer or more as its most popular rows weigh less or more than all.
            return asked
        return binomial(asked, ratio, seed=seed ^ _NOISE_STREAM)

    def waits(self, *, asked: int, missed: int) -> bool:
        """Whether a request waits for its missing rows, or goes on with default vectors while they are loaded."""
        percent = self._config.load_behind_percent
        return percent is None or 100 * (asked - missed) < percent * asked

    def warm(self, popularity: ItemPopularity | None, *, seed: int) -> None:
        """Fill the cache to its steady state under a law, and start the miss ratio from what is then missing."""
        probabilities = self.sampler(popularity).probabilities()
        rows = np.flatnonzero(probabilities)
        ages = -np.log(1.0 - uniforms(seed, len(rows))) / probabilities[rows]
        self._emb.fill(rows[np.argsort(-ages)].tolist())
        probabilities[self._emb.rows_oldest_first()] = 0.0
        self.miss_ratio = min(1.0, float(probabilities.sum()) * self._one_in)
        self._miss_ratio.prime(self.miss_ratio)
