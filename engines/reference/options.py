"""From command line and JSON file to an instance configuration; every error names the field."""

import argparse
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from contract.engine import MAX_PRE_INFER_SLOTS, ItemPopularity, ModelIdentity, Sampling
from simulator.core.config import InstanceConfig
from simulator.core.physics import DEMO_ACCELERATOR, ServiceModel


class ConfigError(ValueError):
    """The configuration cannot be used; the message names the field."""


class ServiceFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Accelerator and model constants of a configuration file; absent ones are those of the demo accelerator."""

    layers: Annotated[int, Meta(ge=1, le=1024)] = DEMO_ACCELERATOR.layers
    width: Annotated[int, Meta(ge=1, le=1 << 16)] = DEMO_ACCELERATOR.width
    flops_per_second: Annotated[float, Meta(gt=0)] = DEMO_ACCELERATOR.flops_per_second
    row_bytes: Annotated[int, Meta(ge=1, le=1 << 20)] = DEMO_ACCELERATOR.row_bytes
    link_bytes_per_second: Annotated[int, Meta(ge=1)] = DEMO_ACCELERATOR.link_bytes_per_second
    gather_efficiency: Annotated[float, Meta(gt=0, le=1)] = DEMO_ACCELERATOR.gather_efficiency
    gather_fixed_ms: Annotated[float, Meta(ge=0)] = DEMO_ACCELERATOR.gather_fixed_ms
    base_ms: Annotated[float, Meta(ge=0)] = DEMO_ACCELERATOR.base_ms
    to_host_bytes_per_second: Annotated[int, Meta(ge=1)] | None = DEMO_ACCELERATOR.to_host_bytes_per_second
    duplex_to_device_share: Annotated[float, Meta(gt=0, le=1)] = DEMO_ACCELERATOR.duplex_to_device_share
    duplex_to_host_share: Annotated[float, Meta(gt=0, le=1)] = DEMO_ACCELERATOR.duplex_to_host_share


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The --config file. Options of the command line win over it."""

    hbm_bytes: Annotated[int, Meta(ge=1, le=1 << 50)] = InstanceConfig.pool_bytes
    emb_percent: Annotated[int, Meta(ge=0, le=100)] = InstanceConfig.emb_percent
    p99_ms: Annotated[float, Meta(gt=0, le=1e9)] = InstanceConfig.p99_ms
    granule_bytes: Annotated[int, Meta(ge=1, le=1 << 40)] = InstanceConfig.granule_bytes
    rows_one_in: Annotated[int, Meta(ge=1, le=1 << 20)] = 64
    users_one_in: Annotated[int, Meta(ge=1, le=1 << 20)] = 1
    model: str = "hstu:1"
    max_split_change_bytes: Annotated[int, Meta(ge=1)] | None = None
    defer_shrinks_ms: Annotated[float, Meta(ge=0, le=3.6e6)] = 0.0
    pre_infer_slots: Annotated[int, Meta(ge=0, le=MAX_PRE_INFER_SLOTS)] = InstanceConfig.pre_infer_slots
    load_behind_percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    host_bytes: Annotated[int, Meta(ge=0, le=1 << 50)] = 0
    ssd_bytes: Annotated[int, Meta(ge=0, le=1 << 50)] = 0
    ssd_bytes_per_second: Annotated[int, Meta(ge=1, le=1 << 50)] = InstanceConfig.ssd_bytes_per_second
    reload_fixed_ms: Annotated[float, Meta(ge=0, le=1e6)] = InstanceConfig.reload_fixed_ms
    refill_yields: bool = InstanceConfig.refill_yields
    refill_blocks_serving: bool = InstanceConfig.refill_blocks_serving
    popularity: ItemPopularity = ItemPopularity(exponent=0.95, catalog_rows=10_000_000)
    service: ServiceFile = ServiceFile()


OPTIONS = (
    "hbm_bytes",
    "emb_percent",
    "p99_ms",
    "rows_one_in",
    "users_one_in",
    "model",
    "host_bytes",
    "ssd_bytes",
    "max_split_change_bytes",
    "defer_shrinks_ms",
    "refill_blocks_serving",
)


def read_config(options: argparse.Namespace) -> InstanceConfig:
    """Return the configuration that file and options describe together.

    Raises
    ------
    ConfigError
        Names the field that is wrong.
    """
    raw: Any = {}
    try:
        if options.config is not None:
            raw = msgspec.json.decode(options.config.read_bytes())
        if not isinstance(raw, dict):
            raise ConfigError("--config: a JSON object is needed")
        for name in OPTIONS:
            if getattr(options, name) is not None:
                raw[camel(name)] = getattr(options, name)
        file = msgspec.convert(raw, ConfigFile)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ConfigError(f"configuration: {error}") from error
    return instance_config(file)


def instance_config(file: ConfigFile) -> InstanceConfig:
    """Return the configuration of a checked file.

    Raises
    ------
    ConfigError
        For an SSD tier without a host tier above it, or a refill that yields and blocks.
    """
    if file.ssd_bytes and not file.host_bytes:
        raise ConfigError("ssdBytes: the SSD is filled from the host tier, so hostBytes must be above 0")
    if file.refill_yields and file.refill_blocks_serving:
        raise ConfigError("refillBlocksServing: a refill that yields (refillYields) blocks nobody")
    name, _, version = file.model.partition(":")
    return InstanceConfig(
        pool_bytes=file.hbm_bytes,
        emb_percent=file.emb_percent,
        p99_ms=file.p99_ms,
        model=ModelIdentity(name=name, version=version or "1", emb_version="1"),
        service=ServiceModel(**msgspec.structs.asdict(file.service)),
        popularity=file.popularity,
        sampling=Sampling(users_one_in=file.users_one_in, rows_one_in=file.rows_one_in),
        granule_bytes=min(file.granule_bytes, file.hbm_bytes),
        max_split_change_bytes=file.max_split_change_bytes,
        defer_shrinks_ms=file.defer_shrinks_ms,
        pre_infer_slots=file.pre_infer_slots,
        load_behind_percent=file.load_behind_percent,
        host_bytes=file.host_bytes,
        ssd_bytes=file.ssd_bytes,
        ssd_bytes_per_second=file.ssd_bytes_per_second,
        reload_fixed_ms=file.reload_fixed_ms,
        refill_yields=file.refill_yields,
        refill_blocks_serving=file.refill_blocks_serving,
    )


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)
