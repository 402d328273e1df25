"""Which embedding rows a request touches: independent draws from a Zipf law, of which only the hash-sampled ones are made.

One row in N is sampled, by key. The access positions of sampled rows form a Bernoulli process whose rate is the sampled rows'
share of the popularity, so geometric gaps give them without drawing the other accesses; the row of each is found by inverting
the distribution over the sampled rows. Nothing is rounded and nothing over-draws the head.
"""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from contract.engine import ItemPopularity
from simulator.core.randomness import GOLDEN, mix, uniforms

MAX_SAMPLED_ROWS = 4_000_000
HEAD_BLOCKS = 65_536
_HEAD = 100_000
_ROW_STREAM = 0x5851_F42D_4C95_7F2D
_NOTHING = np.zeros(0, dtype=np.int64)


def zipf_norm(exponent: float, rows: int) -> float:
    """Return sum of rank**-exponent over 1..rows: exact for the head, Euler-Maclaurin for the tail."""
    head = min(rows, _HEAD)
    total = float(np.sum(np.arange(1, head + 1, dtype=np.float64) ** -exponent))
    if rows == head:
        return total
    low, high = float(head), float(rows)
    integral = np.log(high / low) if exponent == 1.0 else (high ** (1 - exponent) - low ** (1 - exponent)) / (1 - exponent)
    ends = (high**-exponent - low**-exponent) / 2
    slope = exponent * (low ** (-exponent - 1) - high ** (-exponent - 1)) / 12
    return total + float(integral + ends + slope)


def zipf_between(edges: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    """Return the sums of rank**-exponent between consecutive edges (ranks from 1), far from the head: by the integral."""
    x = edges + 0.5
    primitive = np.log(x) if exponent == 1.0 else x ** (1.0 - exponent) / (1.0 - exponent)
    out: NDArray[np.float64] = np.diff(primitive)
    return out


def _bin_edges(first: int, last: int) -> NDArray[np.int64]:
    """Return edges from `first` to `last`, each at most one percent above the one before; [first] when there is no tail."""
    edges = [first]
    while edges[-1] < last:
        edges.append(min(last, edges[-1] + max(1, edges[-1] // 100)))
    return np.array(edges, dtype=np.int64)


def sampled_row_keys(indices: NDArray[np.uint64], one_in: int) -> NDArray[np.uint64]:
    """Return 64-bit sample keys of sampled rows: spread evenly below 2**64 / one_in, so that a reader may thin them further."""
    keys: NDArray[np.uint64] = mix(indices * np.uint64(GOLDEN) + np.uint64(1)) // np.uint64(one_in)
    return keys


class RowSampler:
    """Draws the sampled rows of requests under one popularity law.

    The catalogue is cut into blocks of `one_in` rows and one row of each block, chosen by hash, is in the sample: the block
    number serves as index of a sampled row. Popularity rank of row r is (r - offset) mod catalogue. The most popular HEAD_BLOCKS
    sampled rows have their exact probabilities; the rest lie in bins one percent wide, within which all are alike.

    Parameters
    ----------
    popularity : ItemPopularity
    one_in : int
        One row in this many is sampled; 1 is exact.

    Raises
    ------
    ValueError
        When the sample of the catalogue would not fit in memory.
    """

    def __init__(self, popularity: ItemPopularity, one_in: int) -> None:
        catalog = popularity.catalog_rows
        blocks = -(-catalog // one_in)
        if blocks > MAX_SAMPLED_ROWS:
            raise ValueError(
                f"itemPopularity.catalogRows: {catalog} rows at one in {one_in} are more than {MAX_SAMPLED_ROWS} sampled rows"
            )
        self.universe = blocks
        offset = popularity.offset % catalog
        self._first = offset // one_in
        self._head = min(blocks, HEAD_BLOCKS)
        norm = zipf_norm(popularity.exponent, catalog)
        index = np.asarray((self._first + np.arange(self._head)) % blocks, dtype=np.uint64)
        rows = index * np.uint64(one_in) + mix(index + np.uint64(GOLDEN)) % np.uint64(one_in)
        ranks = (rows.astype(np.int64) - offset) % catalog
        exact = np.where(rows < catalog, np.power(ranks + 1.0, -popularity.exponent, dtype=np.float64), 0.0)
        edges = _bin_edges(self._head, blocks)
        binned = zipf_between((edges * one_in - offset % one_in).astype(np.float64), popularity.exponent) / one_in
        self._mass: NDArray[np.float64] = np.concatenate((exact, binned)) / norm
        self._low: NDArray[np.int64] = np.concatenate((np.arange(self._head), edges[:-1]))
        self._width: NDArray[np.int64] = np.concatenate((np.ones(self._head, dtype=np.int64), np.diff(edges)))
        self._cumulative = np.cumsum(self._mass)
        self.share = float(self._cumulative[-1])
        self._everything = one_in == 1
        self._log_gap = np.log1p(-self.share) if self.share < 1.0 else -np.inf

    def probabilities(self) -> NDArray[np.float64]:
        """Return, for each sampled row by its index, the probability that one access touches it; zero past the catalogue."""
        spread = np.repeat(self._mass / self._width, self._width)
        out: NDArray[np.float64] = np.roll(spread, self._first)
        return out

    def draw(self, seed: int, *, rows: int, skip: int = 0) -> NDArray[np.int64]:
        """Return indices of the sampled rows among a request's accesses, in order, without those at positions below `skip`.

        The accesses depend on `seed` alone: a request whose first tokens are cached touches exactly the rest of what it would
        have touched cold.
        """
        positions = self._positions(seed, rows) if rows > skip and self.share > 0.0 else _NOTHING
        chosen = uniforms(seed ^ _ROW_STREAM, len(positions))
        if skip:
            chosen = chosen[np.searchsorted(positions, skip) :]
        chosen *= self.share
        place = np.minimum(np.searchsorted(self._cumulative, chosen, side="right"), len(self._mass) - 1)
        if len(self._mass) > self._head:
            # In a bin, the rest of the uniform number says which of its rows.
            left = (self._cumulative[place] - chosen) / self._mass[place]
            place = self._low[place] + np.minimum((1.0 - left) * self._width[place], self._width[place] - 1).astype(np.int64)
        out: NDArray[np.int64] = (place + self._first) % self.universe
        return out

    def _positions(self, seed: int, rows: int) -> NDArray[np.int64]:
        if self._everything:
            return np.arange(rows, dtype=np.int64)
        mean = rows * self.share
        count = int(mean + 6.0 * mean**0.5) + 8
        while True:
            # 1 - u lies in (0, 1], so that the logarithm is finite.
            gaps = np.floor(np.log(1.0 - uniforms(seed, count)) / self._log_gap) + 1.0
            positions = np.cumsum(gaps) - 1.0
            if positions[-1] >= rows:
                found: NDArray[np.int64] = positions[: np.searchsorted(positions, rows)].astype(np.int64)
                return found
            count *= 2


class SamplerCache:
    """Keeps the samplers of the last few popularity laws, since building one costs milliseconds."""

    def __init__(self, one_in: int, *, size: int = 8) -> None:
        self._one_in = one_in
        self._size = size
        self._known: OrderedDict[ItemPopularity, RowSampler] = OrderedDict()

    def get(self, popularity: ItemPopularity) -> RowSampler:
        """Return the sampler of a law; ValueError names the field when the law does not fit."""
        sampler = self._known.get(popularity)
        if sampler is None:
            sampler = self._known[popularity] = RowSampler(popularity, self._one_in)
            if len(self._known) > self._size:
                self._known.popitem(last=False)
        return sampler
