"""What the manifests ask for: one pool, and the policies that it names, looked up as the operator looks them up."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crds.hbm_policy import HBMPolicy, HBMPolicySpec
from crds.instance import GRInstance, PreInfer
from crds.preinference_policy import PreInferencePolicy, PreInferencePolicySpec
from crds.routing_policy import RoutingPolicy, RoutingPolicySpec
from crds.serving_pool import GRServingPool
from grfleet.simulate.errors import BadInput
from grfleet.simulate.manifests import Manifests, read_manifests

DEFAULT = "default"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One pool with its policies.

    Attributes
    ----------
    file : Path
        Where the pool stands.
    pool : GRServingPool
    hbm : HBMPolicySpec
    hbm_from : str
        Where the policy of the split comes from, for people.
    pre_inference : PreInferencePolicySpec or None
        None where no file has the policy that the pool names.
    routing : RoutingPolicySpec or None
        None where no file has the policy that the pool names.
    capacity : tuple of PreInfer
        Slots and bytes of the pool's instances, where the file has GRInstances to which the cluster gave some.
    notes : tuple of str
        What was left alone or filled in.
    """

    file: Path
    pool: GRServingPool
    hbm: HBMPolicySpec
    hbm_from: str
    pre_inference: PreInferencePolicySpec | None
    routing: RoutingPolicySpec | None
    capacity: tuple[PreInfer, ...]
    notes: tuple[str, ...]

    def field(self, path: str) -> str:
        """Name a field of the pool for an error."""
        return f"{self.file}, GRServingPool {self.pool.metadata.name}, field {path}"


def wanted(pool_file: Path, *, name: str | None = None, hbm_file: Path | None = None) -> Wanted:
    """Return the pool of a file with its policies, which may stand in the same file or, for the split, in one of their own.

    Parameters
    ----------
    name : str, optional
        Which pool, where the file holds several.
    hbm_file : Path, optional
        Its only HBMPolicy is taken whatever it is called; of several the one that the pool names.

    Raises
    ------
    BadInput
        When there is no such pool or policy, or something in the files cannot be used.
    """
    manifests = read_manifests(pool_file)
    pool = _pool(manifests, name)
    notes = [f"{manifests.file.name}: not simulated: {each}" for each in manifests.others]
    hbm, hbm_from = _hbm(pool, manifests, read_manifests(hbm_file) if hbm_file is not None else None)
    pre_inference = [each for each in manifests.of(PreInferencePolicy) if each.metadata.name == pool.spec.policies.pre_inference]
    routing = [each for each in manifests.of(RoutingPolicy) if each.metadata.name == pool.spec.policies.routing]
    return Wanted(
        file=pool_file,
        pool=pool,
        hbm=hbm,
        hbm_from=hbm_from,
        pre_inference=pre_inference[0].spec if pre_inference else None,
        routing=routing[0].spec if routing else None,
        capacity=_capacity(pool, manifests),
        notes=tuple(notes),
    )


def hbm_policy_of(path: Path, pool: GRServingPool) -> tuple[HBMPolicySpec, str]:
    """Return the policy of the split that a file holds for a pool, and its name for people.

    Raises
    ------
    BadInput
        When the file cannot be used, or does not say which one is meant.
    """
    manifests = read_manifests(path)
    found = manifests.of(HBMPolicy)
    if len(found) > 1:
        found = [each for each in found if each.metadata.name == pool.spec.policies.hbm]
    if len(found) != 1:
        raise BadInput(
            str(path), f"holds no HBMPolicy for the pool, which names {pool.spec.policies.hbm}", then="one HBMPolicy is needed"
        )
    return found[0].spec, f"HBMPolicy {found[0].metadata.name} of {path.name}"


def _pool(manifests: Manifests, name: str | None) -> GRServingPool:
    pools = manifests.of(GRServingPool)
    names = ", ".join(each.metadata.name for each in pools)
    if not pools:
        raise BadInput(str(manifests.file), "holds no GRServingPool", then="docs/examples/pool.yaml shows one")
    if name is None and len(pools) > 1:
        raise BadInput(str(manifests.file), f"holds {len(pools)} pools ({names})", then="choose one with --name")
    chosen = [each for each in pools if name in (None, each.metadata.name)]
    if len(chosen) != 1:
        raise BadInput(str(manifests.file), f"holds {len(chosen)} pools of the name {name}; there are {names}")
    return chosen[0]


def _capacity(pool: GRServingPool, manifests: Manifests) -> tuple[PreInfer, ...]:
    """What the pre-inference loop gave the instances of a pool; nothing of a moment at which nobody asked for prefixes."""
    own = [each.spec.pre_infer for each in manifests.of(GRInstance) if each.spec.pool_ref == pool.metadata.name]
    return tuple(each for each in own if each is not None and each.slots > 0 and each.bytes > 0)


def _hbm(pool: GRServingPool, beside: Manifests, own: Manifests | None) -> tuple[HBMPolicySpec, str]:
    """The policy of the split: that of its own file, else the named one beside the pool, else the built-in defaults."""
    if own is not None:
        return hbm_policy_of(own.file, pool)
    named = pool.spec.policies.hbm
    found: Sequence[HBMPolicy] = [each for each in beside.of(HBMPolicy) if each.metadata.name == named]
    if len(found) > 1:
        raise BadInput(str(beside.file), f"holds {len(found)} HBMPolicies of the name {named}")
    if found:
        return found[0].spec, f"HBMPolicy {named} of {beside.file.name}"
    if named != DEFAULT:
        raise BadInput(
            f"{beside.file}, GRServingPool {pool.metadata.name}, field spec.policies.hbm",
            f"names {named}, which the file does not hold",
            then="add it to the file, or give --hbm-policy FILE",
        )
    return HBMPolicySpec(), "the built-in defaults"
