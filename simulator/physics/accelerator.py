"""Accelerator profiles: what one device can do, from a data file that names the source of every number.

Rates are peak times a share that was fitted or assumed; sizes and link rates are the device's. A team may describe a device of
its own in the same format.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from simulator.physics.sourced import Origin, Sheet, names_in, parse_sheet, read_sheet, shipped


@dataclass(frozen=True, kw_only=True)
class AcceleratorProfile:
    """One accelerator.

    Parameters
    ----------
    name : str
    peak_flops_per_second : float
        Dense bf16 throughput of the data sheet.
    effective_flop_share : float
        Share of the peak that a full batch reaches.
    compute_units : int
        Independent units (streaming multiprocessors, AI cores) that an attention kernel spreads over.
    serial_query_tokens : int
        Query tokens that one unit works through against the whole history, whatever the other units do: the occupancy floor.
    launch_ms_per_layer : float
        Time of a layer that no token pays for: launches, normalisation, small tensors.
    decode_flop_share, decode_pass_ms : float
        The same two for a beam pass of a decoder: share of the peak, and fixed time of one pass.
    hbm_bytes, hbm_bytes_per_second : int
    to_device_bytes_per_second, to_host_bytes_per_second : int
        Usable one-way rates of the host link.
    duplex_to_device_share, duplex_to_host_share : float
        Share of the one-way rate that is left while the other direction is busy as well.
    transfer_fixed_ms : float
        Fixed time of a transfer through a native copy path.
    gather_link_share, gather_fixed_ms : float
        Share of the link that a gather of single rows reaches; fixed time of a gather.
    page_bytes : int
        Physical page of the virtual memory interface.
    page_create_ms, page_map_ms, page_access_ms, page_unmap_ms : float
        Time of one call on one page.
    origins : Mapping[str, Origin]
        Source of each number; not compared.
    """

    name: str
    peak_flops_per_second: float
    effective_flop_share: float
    compute_units: int
    serial_query_tokens: int
    launch_ms_per_layer: float
    decode_flop_share: float
    decode_pass_ms: float
    hbm_bytes: int
    hbm_bytes_per_second: int
    to_device_bytes_per_second: int
    to_host_bytes_per_second: int
    duplex_to_device_share: float
    duplex_to_host_share: float
    transfer_fixed_ms: float
    gather_link_share: float
    gather_fixed_ms: float
    page_bytes: int
    page_create_ms: float
    page_map_ms: float
    page_access_ms: float
    page_unmap_ms: float
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)

    @property
    def flops_per_second(self) -> float:
        """Effective rate R."""
        return self.peak_flops_per_second * self.effective_flop_share

    @property
    def decode_flops_per_second(self) -> float:
        """Effective rate of a beam pass."""
        return self.peak_flops_per_second * self.decode_flop_share

    @property
    def gather_bytes_per_second(self) -> float:
        """Rate of a gather of single rows over an idle link."""
        return self.to_device_bytes_per_second * self.gather_link_share


NUMBERS = {item.name: item.type for item in fields(AcceleratorProfile) if item.name not in ("name", "origins")}


def known_accelerators() -> list[str]:
    """Names of the profiles that come with grfleet."""
    return names_in("accelerators")


def load_accelerator(name: str) -> AcceleratorProfile:
    """Load a profile that comes with grfleet.

    Raises
    ------
    ProfileError
        When there is none of that name, or it cannot be used.
    """
    return _profile(read_sheet(shipped("accelerators", name), fields=NUMBERS))


def read_accelerator(path: Path) -> AcceleratorProfile:
    """Read a team's own profile; it is named after its file.

    Raises
    ------
    ProfileError
        When the file cannot be read or used.
    """
    return _profile(read_sheet(path, fields=NUMBERS))


def parse_accelerator(text: str, *, name: str) -> AcceleratorProfile:
    """Parse a profile from the text of its file.

    Raises
    ------
    ProfileError
        When it cannot be used.
    """
    return _profile(parse_sheet(text, name=name, fields=NUMBERS))


def _profile(sheet: Sheet) -> AcceleratorProfile:
    numbers = {key: int(value) if NUMBERS[key] is int else float(value) for key, value in sheet.values.items()}
    return AcceleratorProfile(name=sheet.name, origins=sheet.origins, **numbers)  # type: ignore[arg-type]  # checked by NUMBERS
