"""The cost of one transfer over the host link: a fixed time, then bytes over a rate that halves when both directions are busy.

The fixed time is software (look-up, page lists, launch, completion), so it belongs to a stack, not to the device: a native copy
path costs tens of microseconds, published key-value managers several milliseconds a batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from simulator.physics.accelerator import AcceleratorProfile
from simulator.physics.sourced import Origin, names_in, read_sheet, shipped


class Direction(StrEnum):
    """Which way bytes go."""

    TO_DEVICE = "to_device"
    TO_HOST = "to_host"


@dataclass(frozen=True, kw_only=True)
class TransferCost:
    """Constants of a copy path, both directions.

    Parameters
    ----------
    name : str
    to_device_fixed_ms, to_host_fixed_ms : float
        Time of a transfer that no byte pays for; it does not occupy the link.
    to_device_bytes_per_second, to_host_bytes_per_second : int
        Rate while the other direction is idle.
    to_device_duplex_share, to_host_duplex_share : float
        Share of that rate that is left while the other direction is busy.
    origins : Mapping[str, Origin]
        Source of each number that came from a file; not compared.
    """

    name: str
    to_device_fixed_ms: float
    to_device_bytes_per_second: int
    to_host_fixed_ms: float
    to_host_bytes_per_second: int
    to_device_duplex_share: float
    to_host_duplex_share: float
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)

    def fixed_ms(self, direction: Direction) -> float:
        """Fixed time of one transfer."""
        return self.to_device_fixed_ms if direction is Direction.TO_DEVICE else self.to_host_fixed_ms

    def bytes_per_ms(self, direction: Direction, *, duplex: bool = False) -> float:
        """Rate of one direction; `duplex` says that the other one is busy."""
        if direction is Direction.TO_DEVICE:
            rate, share = self.to_device_bytes_per_second, self.to_device_duplex_share
        else:
            rate, share = self.to_host_bytes_per_second, self.to_host_duplex_share
        return rate * (share if duplex else 1.0) / 1e3

    def transfer_ms(self, direction: Direction, byte_count: int, *, duplex: bool = False) -> float:
        """Milliseconds of one transfer, or of several back to back whose fixed times overlap; 0 for no bytes.

        Raises
        ------
        ValueError
            For negative bytes.
        """
        if byte_count < 0:
            raise ValueError(f"byte_count: {byte_count} must not be negative")
        if byte_count == 0:
            return 0.0
        return self.fixed_ms(direction) + byte_count / self.bytes_per_ms(direction, duplex=duplex)


STACK_FIELDS = ("to_device_fixed_ms", "to_device_bytes_per_second", "to_host_fixed_ms", "to_host_bytes_per_second")


def native_transfer(accelerator: AcceleratorProfile) -> TransferCost:
    """The cost of plain pinned copies on that device."""
    return TransferCost(
        name="native",
        to_device_fixed_ms=accelerator.transfer_fixed_ms,
        to_device_bytes_per_second=accelerator.to_device_bytes_per_second,
        to_host_fixed_ms=accelerator.transfer_fixed_ms,
        to_host_bytes_per_second=accelerator.to_host_bytes_per_second,
        to_device_duplex_share=accelerator.duplex_to_device_share,
        to_host_duplex_share=accelerator.duplex_to_host_share,
    )


def known_transfers() -> list[str]:
    """Names of the published copy paths that come with grfleet."""
    return names_in("transfers")


def load_transfer(name: str, accelerator: AcceleratorProfile) -> TransferCost:
    """Load a published copy path; the duplex penalty is the device's.

    Raises
    ------
    ProfileError
        When there is none of that name, or it cannot be used.
    """
    sheet = read_sheet(shipped("transfers", name), fields=STACK_FIELDS)
    values = sheet.values
    return TransferCost(
        name=name,
        to_device_fixed_ms=values["to_device_fixed_ms"],
        to_device_bytes_per_second=int(values["to_device_bytes_per_second"]),
        to_host_fixed_ms=values["to_host_fixed_ms"],
        to_host_bytes_per_second=int(values["to_host_bytes_per_second"]),
        to_device_duplex_share=accelerator.duplex_to_device_share,
        to_host_duplex_share=accelerator.duplex_to_host_share,
        origins=sheet.origins,
    )


def gather_ms(accelerator: AcceleratorProfile, *, rows: int, row_bytes: int, link_share_taken: float = 0.0) -> float:
    """Milliseconds to gather single rows while other transfers take a share (0..1) of the link; 0 for no rows.

    Raises
    ------
    ValueError
        When nothing of the link is left, or for negative rows.
    """
    if not 0.0 <= link_share_taken < 1.0:
        raise ValueError(f"link_share_taken: {link_share_taken} must be at least 0 and below 1")
    if rows < 0 or row_bytes < 1:
        raise ValueError(f"rows: {rows} must not be negative; row_bytes: {row_bytes} must be at least 1")
    if rows == 0:
        return 0.0
    rate = accelerator.gather_bytes_per_second * (1.0 - link_share_taken)
    return accelerator.gather_fixed_ms + rows * row_bytes / rate * 1e3
