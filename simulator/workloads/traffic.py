"""What every regime is asked for: rate, duration, size of the fleet, which part of the recordings, and the seed."""

from dataclasses import asdict, dataclass, field
from typing import Any

from simulator.request_log import MAX_HISTORY_TOKENS
from simulator.workloads.columns import Signals
from simulator.workloads.parts import Part
from simulator.workloads.sources import AZURE_FILES

BASE_CANDIDATES = (250, 450)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What all regimes are asked for.

    Attributes
    ----------
    seed : int
        Of everything that is drawn.
    duration_s, requests_per_second : float
        Length, and mean rate over it (Burst adds its events on top).
    instances : int
        How many copies of the recorded users are played side by side.
    part : Part
        Which part of the recordings may be used.
    arrivals : str
        `conversation`, or `code`, whose arrivals are strongly bursty.
    max_history_tokens : int
        Longer histories are cut, as a model with a bounded context does.
    rows_per_token : int
        Embedding rows looked up per new token and per candidate: the item and one side id.
    signals : Signals
        Early signals.
    """

    seed: int
    duration_s: float = 300.0
    requests_per_second: float = 640.0
    instances: int = 32
    part: Part = Part.ALL
    arrivals: str = "conversation"
    max_history_tokens: int = 16_384
    rows_per_token: int = 2
    signals: Signals = field(default_factory=Signals)

    def __post_init__(self) -> None:
        bounds = {
            "duration_s": (self.duration_s, 1.0, 1e6),
            "requests_per_second": (self.requests_per_second, 0.01, 1e6),
            "instances": (self.instances, 1, 4096),
            "max_history_tokens": (self.max_history_tokens, 1, MAX_HISTORY_TOKENS),
            "rows_per_token": (self.rows_per_token, 0, 1024),
            "requests": (self.duration_s * self.requests_per_second, 0.5, 2e8),
            "seed": (self.seed, 0, (1 << 63) - 1),
        }
        if self.arrivals not in AZURE_FILES:
            raise ValueError(f"arrivals: {self.arrivals!r} is none of {', '.join(AZURE_FILES)}")
        for name, (value, least, most) in bounds.items():
            if not least <= value <= most:  # refuses NaN as well
                raise ValueError(f"{name}: {value} lies outside {least}..{most}")

    @property
    def duration_ms(self) -> float:
        return self.duration_s * 1000.0

    @property
    def requests(self) -> int:
        return round(self.duration_s * self.requests_per_second)

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as JSON values."""
        return asdict(self)
