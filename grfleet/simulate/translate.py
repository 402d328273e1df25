"""From manifests to the fleet that is simulated, with a sentence for everything that a manifest does not say.

A pool says bytes a token and a row, but neither layers nor a device: both are options of the command, and are assumed otherwise.
"""

from dataclasses import dataclass
from pathlib import Path

from crds.hbm_policy import Refill
from crds.serving_pool import Attention as PoolAttention
from crds.types import parse_quantity
from grfleet.simulate.errors import BadInput
from grfleet.simulate.wanted import Wanted
from policies.routing.rendezvous import place
from simulator.fleet.config import FleetConfig
from simulator.physics.accelerator import AcceleratorProfile, known_accelerators, load_accelerator, read_accelerator
from simulator.physics.model_shape import HSTU_MTSERVE, HSTU_PUBLISHED, QWEN3_1_7B, Attention, ModelShape
from simulator.physics.profiled import profiled_service
from simulator.physics.sourced import ProfileError

LAYERS = 8
MOST_REFILL_PERCENT = 90
STANDS_STILL = "routing: every instance is warm, nobody moves; RoutingPolicies have no effect without --routing"
_PUBLISHED = {
    16_384: (HSTU_MTSERVE, "the published HSTU of MTServe"),
    32_768: (HSTU_PUBLISHED, "the published HSTU block"),
    114_688: (QWEN3_1_7B, "Qwen3-1.7B"),
}
_FIELDS = {
    "pool_bytes": "spec.memory.hbmBytes",
    "host_bytes": "spec.memory.hostBytes",
    "ssd_bytes": "spec.memory.ssdBytes",
    "slo_ms": "spec.slo.p99Ms",
    "instances": "spec.replicas",
    "emb_percent": "bounds.fallbackEmbPercent of the HBMPolicy",
}


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A fleet that can be simulated, and what was assumed about it."""

    config: FleetConfig
    accelerator: AcceleratorProfile
    shape: ModelShape
    names: tuple[str, ...]
    assumptions: tuple[str, ...]

    @property
    def owners(self) -> list[int]:
        """Owner of each slot of the routing table, as the routing loop publishes it for these names when all are warm."""
        return [int(owner) for owner in place(self.names, [100.0] * len(self.names))]


def accelerator_of(named: str) -> AcceleratorProfile:
    """Return a profile by the name of a shipped one, or by the path of a file.

    Raises
    ------
    BadInput
        When there is none, or the file cannot be used.
    """
    then = f"shipped are {', '.join(known_accelerators())}; docs/physics.md says what a file holds"
    if named in known_accelerators():
        return load_accelerator(named)
    if not Path(named).exists():
        raise BadInput(f"--accelerator {named}", "neither a profile that is shipped nor a file", then=then)
    try:
        return read_accelerator(Path(named))
    except ProfileError as error:
        # the profile's error begins with the name of the file, without folder and ending
        raise BadInput(f"--accelerator {named}", str(error).removeprefix(f"{Path(named).stem}: "), then=then) from None


def fleet_of(
    wanted: Wanted,
    *,
    accelerator: AcceleratorProfile,
    layers: int | None,
    width: int | None,
    instances: int | None,
    load_behind_percent: int | None = None,
) -> Fleet:
    """Return the fleet of a pool.

    Parameters
    ----------
    layers, width : int, optional
        Of the model: HSTU layers, and what a token is wide between them.
    instances : int, optional
        Instead of what the pool says.
    load_behind_percent : int, optional
        Hits from which on a request takes default vectors for the rest; every request waits when absent.

    Raises
    ------
    BadInput
        When the manifests ask for what cannot be, or say too little.
    """
    spec = wanted.pool.spec
    shape, told = _shape(wanted, layers=layers, width=width)
    assumptions = [
        f"accelerator: the profile {accelerator.name} (docs/physics.md says what of it is measured)",
        told,
        STANDS_STILL,
    ]
    hbm_bytes = parse_quantity(spec.memory.hbm_bytes)
    if hbm_bytes > 1.5 * accelerator.hbm_bytes:  # sizes of cards are rounded
        times = hbm_bytes / accelerator.hbm_bytes
        assumptions.append(f"memory: {times:.1f} times that of one {accelerator.name}; compute and link stay those of one")
    refill, asked = refill_percent(wanted.hbm.refill, accelerator)
    if refill != asked:
        assumptions.append(f"refill: {asked:.3g} % of the link is taken as {refill} %")
    if spec.memory.usable_bytes() and parse_quantity(spec.memory.ssd_bytes):
        assumptions.append("SSD: read at 6 GB/s")
    if load_behind_percent is not None:
        assumptions.append(
            f"load-behind: requests of whose rows {load_behind_percent} % hit take default vectors for the rest; neither what"
            " that costs in quality nor its share of the link is simulated"
        )
    many = instances if instances is not None else _instances(wanted)
    try:
        config = FleetConfig(
            instances=many,
            pool_bytes=spec.memory.usable_bytes(),
            emb_percent=wanted.hbm.bounds.fallback_emb_percent,
            service=profiled_service(accelerator, shape, row_bytes=spec.model.emb_row_bytes),
            slo_ms=float(spec.slo.p99_ms),
            host_bytes=parse_quantity(spec.memory.host_bytes),
            ssd_bytes=parse_quantity(spec.memory.ssd_bytes),
            reload_fixed_ms=accelerator.transfer_fixed_ms,
            refill_link_percent=refill,
            load_behind_percent=load_behind_percent,
        )
    except ValueError as error:
        named, _, problem = str(error).partition(": ")
        raise BadInput(wanted.field(_FIELDS.get(named, named)), problem) from None
    names = _names(wanted, config.instances)
    return Fleet(config=config, accelerator=accelerator, shape=shape, names=names, assumptions=tuple(assumptions))


def _names(wanted: Wanted, instances: int) -> tuple[str, ...]:
    """Names of the GRInstances, which place the users: those of external entries are known, pods are numbered."""
    pool, external = wanted.pool.metadata.name, wanted.pool.spec.instances.external
    if external is not None and len(external) == instances:
        return tuple(f"{pool}-{entry.name}" for entry in external)
    return tuple(f"{pool}-{number}" for number in range(instances))


def _instances(wanted: Wanted) -> int:
    spec = wanted.pool.spec
    if spec.instances.external is not None:
        return len(spec.instances.external)
    if spec.instances.managed is not None:
        if spec.replicas < 1:
            raise BadInput(wanted.field("spec.replicas"), "0 instances serve nothing", then="give --instances N")
        return spec.replicas
    raise BadInput(
        wanted.field("spec.instances.adopted"), "the manifest does not say how many pods there are", then="give --instances N"
    )


def _shape(wanted: Wanted, *, layers: int | None, width: int | None) -> tuple[ModelShape, str]:
    """The model behind `kvBytesPerToken`: a published one, or HSTU layers of the width that the bytes leave."""
    model = wanted.pool.spec.model
    kv = model.kv_bytes_per_token
    if model.attention is PoolAttention.LINEAR:
        raise BadInput(
            wanted.field("spec.model.attention"),
            "Linear keeps one state of fixed size for each user, and the simulator counts tokens",
            then="only Softmax can be simulated yet",
        )
    if layers is None and width is None and kv in _PUBLISHED:
        shape, name = _PUBLISHED[kv]
        return (
            shape,
            f"model: {name}, which keeps {kv} bytes a token as well ({_words(shape)}); --layers and --width say otherwise",
        )
    count = layers if layers is not None else next((n for n in (LAYERS, 4, 2, 1) if kv % (4 * n) == 0), 1)
    if kv % (4 * count):
        raise BadInput(
            wanted.field("spec.model.kvBytesPerToken"),
            f"{kv} is not 2 x {count} layers x 2 bytes x any width, so no model of that shape has it",
            then="give --layers N",
        )
    attention = kv // (4 * count)
    head = next(size for size in (128, 64, 32, 16, 8, 4, 2, 1) if attention % size == 0)
    shape = ModelShape(attention=Attention.HSTU, layers=count, width=width or attention, heads=attention // head, head_dim=head)
    return shape, f"model: {_words(shape)}; --layers and --width say otherwise"


def _words(shape: ModelShape) -> str:
    kind = "HSTU" if shape.attention is Attention.HSTU else "softmax"
    return f"{shape.layers} {kind} layers of width {shape.width}, {shape.heads} heads of {shape.head_dim}"


def refill_percent(refill: Refill, accelerator: AcceleratorProfile) -> tuple[int, float]:
    """Return the lower of the two caps of a refill in whole percent of the link, and as it was asked for."""
    asked = float(refill.max_link_percent)
    most_bytes = refill.max_bytes()
    if most_bytes is not None:
        asked = min(asked, 100.0 * most_bytes / accelerator.to_device_bytes_per_second)
    return min(int(asked), MOST_REFILL_PERCENT), asked
