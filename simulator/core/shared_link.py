"""The host link of one instance, accounted for from job to job instead of event by event.

Demand, reload and prefetch go to the device in the order of their jobs, and a refill gets either a rate that is set aside or the
time that they leave. Off-load goes to the host, after everybody: it slows nobody of its own direction, but while some of it waits
both directions are busy and each keeps only its duplex share. `simulator.physics.link` is the event model of the same link; the
compiled fleet has the same account.
"""

from simulator.core.physics import ServiceModel


class SharedLink:
    """What waits for the link, and since when.

    Parameters
    ----------
    service : ServiceModel
        Rates of both directions, and what is left of them while both are busy.

    Attributes
    ----------
    at_ms : float
        Until when off-load is accounted for; it may lie ahead of the clock, where a job that waits has its transfers.
    offload_left_bytes : float
        What waits to go to the host.
    """

    def __init__(self, service: ServiceModel) -> None:
        self.at_ms = 0.0
        self.offload_left_bytes = 0.0
        self._service = service
        self._to_host_per_ms = (service.to_host_bytes_per_second or service.link_bytes_per_second) / 1e3
        self._seen_bytes = 0
        self._empty_at_ms = 0.0
        self._busy_since_ms = 0.0
        self._busy_transfers_ms = 0.0
        self._higher_ms = 0.0

    def hand_over(self, now_ms: float, *, offloaded_bytes: int, free_at_ms: float) -> float:
        """Hand what a job evicted to off-load at its arrival; return by how much that delays jobs from now on.

        Transfers of jobs that wait are accounted for already, up to `at_ms`. Where nothing was left to go beside them, what is
        new goes now, and what it takes from them is charged to those who come after. How much of that time transfers take is
        known on average over the busy period, since when the server was last free.

        Parameters
        ----------
        free_at_ms : float
            When the server has done what it knows of.
        """
        left = float(offloaded_bytes - self._seen_bytes)
        self._seen_bytes = offloaded_bytes
        beside_ms = self.at_ms - max(now_ms, self._empty_at_ms)
        if left <= 0.0 or self.offload_left_bytes > 0.0 or beside_ms <= 0.0:
            self.offload_left_bytes += left
            return 0.0
        keeps = self._service.duplex_to_device_share
        share = self._busy_transfers_ms / (free_at_ms - self._busy_since_ms)
        share = share / keeps / (share / keeps + 1.0 - share)
        rate = self._to_host_per_ms * (1.0 - share + share * self._service.duplex_to_host_share)
        ms = min(left / rate, beside_ms)
        delay = share * ms * (1.0 - keeps)
        self._empty_at_ms = max(now_ms, self._empty_at_ms) + ms
        self.offload_left_bytes = max(0.0, left - ms * rate)
        self.at_ms += delay
        return delay

    def offload_until(self, now_ms: float, *, offloaded_bytes: int, refilling: bool) -> None:
        """Move what waits to the host until `now_ms`, when nothing of a job goes to the device.

        Parameters
        ----------
        offloaded_bytes : int
            All that was ever handed to off-load; what is new since the last call was handed over at the time of that call.
        refilling : bool
            Whether a refill is under way, which keeps the other direction busy.
        """
        self.offload_left_bytes += offloaded_bytes - self._seen_bytes
        self._seen_bytes = offloaded_bytes
        if now_ms > self.at_ms:
            rate = self._to_host_per_ms * (self._service.duplex_to_host_share if refilling else 1.0)
            self._go(rate, now_ms - self.at_ms)

    def waiting_bytes(self, *, offloaded_bytes: int) -> float:
        """Return what waits to go to the host, of what was ever handed to off-load, as far as time is accounted for."""
        return self.offload_left_bytes + (offloaded_bytes - self._seen_bytes)

    def load_ms(self, size: int, *, taken: float = 0.0, source_bytes_per_second: float | None = None) -> float:
        """Milliseconds to load so many bytes of state now.

        Parameters
        ----------
        taken : float
            Share of the link that is set aside for others, 0..1.
        source_bytes_per_second : float, optional
            Rate at which they can be read, where that is not host memory.
        """
        alone = self._service.link_bytes_per_second * (1.0 - taken)
        both = alone * self._service.duplex_to_device_share
        if source_bytes_per_second is not None:
            alone, both = min(alone, source_bytes_per_second), min(both, source_bytes_per_second)
        return self._transfer_ms(size, alone=alone / 1e3, both=both / 1e3)

    def gather_ms(self, missed_rows: int, *, taken: float = 0.0) -> float:
        """Milliseconds to fetch missed rows now, the fixed cost included; 0 for none."""
        model = self._service
        if not missed_rows or not self.offload_left_bytes:
            return model.gather_ms(missed_rows=missed_rows, link_share_taken=taken)
        alone = model.link_bytes_per_second * model.gather_efficiency * (1.0 - taken) / 1e3
        both = alone * model.duplex_to_device_share
        return model.gather_fixed_ms + self._transfer_ms(missed_rows * model.row_bytes, alone=alone, both=both)

    def _transfer_ms(self, size: float, *, alone: float, both: float) -> float:
        """Milliseconds at so many bytes a millisecond while the other direction is idle, and while it is busy."""
        busy_ms = self.offload_left_bytes / (self._to_host_per_ms * self._service.duplex_to_host_share)
        if size <= both * busy_ms:
            return size / both
        return busy_ms + (size - both * busy_ms) / alone

    def took(self, ms: float) -> None:
        """Note that a job's transfer took so long; off-load went on beside it."""
        self._go(self._to_host_per_ms * self._service.duplex_to_host_share, ms)
        self._busy_transfers_ms += ms
        self._higher_ms += ms

    def free_since(self, now_ms: float) -> None:
        """Note that the server was free until now: what transfers take of its time is counted anew."""
        self._busy_since_ms, self._busy_transfers_ms = now_ms, 0.0

    def _go(self, rate: float, ms: float) -> None:
        """Move what waits to the host at so many bytes a millisecond."""
        if self.offload_left_bytes > 0.0:
            self._empty_at_ms = self.at_ms + min(ms, self.offload_left_bytes / rate)
            self.offload_left_bytes = max(0.0, self.offload_left_bytes - rate * ms)
        self.at_ms += ms

    def prefetched(self, size: int) -> None:
        """Note bytes that came to the device for no job: only a refill that yields waits for them."""
        self._higher_ms += size / (self._service.link_bytes_per_second / 1e3)

    def left_for_refill_ms(self, elapsed_ms: float) -> float:
        """Return how much of the time passed those before a refill have left, and settle with them."""
        used = min(self._higher_ms, elapsed_ms)
        self._higher_ms -= used
        return elapsed_ms - used
