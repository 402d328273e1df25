"""Brings a model into a cluster: a ConfigMap with the bytes, which nobody can edit, and an AllocatorModel with their digest.

The ConfigMap comes first, so that whoever sees the AllocatorModel finds its bytes; afterwards it is given that owner, so that it
goes with it. Each step can be repeated: a push that was cut off is finished by the next one.
"""

import base64
import re
from pathlib import Path
from typing import Any

from controllers.model_bytes import binary_of
from controllers.runtime.resources import ALLOCATOR_MODELS, CONFIG_MAPS, Key, Object, identity, owner_reference
from crds.allocator_model import ConfigMapKeyRef
from crds.types import DNS_SUBDOMAIN, GROUP
from grfleet.access import Failed, KubeFlags, explained, reach
from policies.allocation.model_file import read_model

FIELD_MANAGER = "grfleet-cli"
CONFIG_MAP_PREFIX = "grfleet-model-"
MODEL_LABEL = f"{GROUP}/allocator-model"
"""Label on a ConfigMap with the bytes of a model: the name of its AllocatorModel."""
KEY = "model.safetensors"
_NAME = re.compile(DNS_SUBDOMAIN)
_LONGEST_NAME = 63


def model_name(given: str, file: Path) -> str:
    """The name to push under: the given one, else that of the file without its extension.

    Raises
    ------
    Failed
        It is no name that an object can have.
    """
    name = given or file.stem.lower().replace("_", "-")
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise Failed(f"{name!r} is no name of an object (at most 63 of a-z, 0-9, - and .); choose one with --name")
    return name


async def pushed(flags: KubeFlags, name: str, data: bytes) -> str:
    """Push verified bytes under a name and return what to tell the user.

    Raises
    ------
    Failed
        The name has another digest already, the bytes under it were changed, or the API server refuses.
    """
    model = read_model(data)
    async with reach(flags) as cluster:
        where = Key(cluster.namespace, name)
        with explained(cluster):
            stored = await cluster.kube.get(ALLOCATOR_MODELS, where)
            _refuse_another_digest(stored, where, model.sha256)
            bytes_in = Key(where.namespace, CONFIG_MAP_PREFIX + name)
            found = await cluster.kube.get(CONFIG_MAPS, bytes_in)
            body = config_map_body(bytes_in, name, data)
            if found is not None:
                _refuse_other_bytes(found, bytes_in, name, data)
            current = await cluster.kube.apply(CONFIG_MAPS, body, field_manager=FIELD_MANAGER, current=found)
            wanted = model_body(where, bytes_in.name, model.sha256, model.feature_spec)
            owner = await cluster.kube.apply(ALLOCATOR_MODELS, wanted, field_manager=FIELD_MANAGER, current=stored)
            body["metadata"]["ownerReferences"] = [owner_reference(ALLOCATOR_MODELS, owner)]
            await cluster.kube.apply(CONFIG_MAPS, body, field_manager=FIELD_MANAGER, current=current)
    verb = "is there already" if stored is not None else "was pushed"
    return (
        f"AllocatorModel {where} {verb}: sha256 {model.sha256}\n"
        f"`kubectl -n {where.namespace} wait --for=condition=Verified amod/{name}` waits until it may run; "
        f"an HBMPolicy of this namespace runs it with strategy Learned and learned.model {name}"
    )


def config_map_body(where: Key, model: str, data: bytes) -> dict[str, Any]:
    """The ConfigMap with the bytes of a model; immutable, as the digest is."""
    body = identity(CONFIG_MAPS, where)
    body["metadata"]["labels"] = {MODEL_LABEL: model}
    body["immutable"] = True
    body["binaryData"] = {KEY: base64.b64encode(data).decode()}
    return body


def model_body(where: Key, config_map: str, sha256: str, feature_spec: str) -> dict[str, Any]:
    """The AllocatorModel without its status."""
    ref = {"name": config_map, "key": KEY}
    return {
        **identity(ALLOCATOR_MODELS, where),
        "spec": {"configMapKeyRef": ref, "sha256": sha256, "featureSpec": feature_spec},
    }


def _refuse_another_digest(stored: Object | None, where: Key, sha256: str) -> None:
    if stored is None:
        return
    if stored["metadata"].get("deletionTimestamp"):
        raise Failed(f"AllocatorModel {where} is being deleted; wait until it is gone")
    there = str((stored.get("spec") or {}).get("sha256", ""))
    if there != sha256:
        raise Failed(
            f"AllocatorModel {where} is another model (sha256 {there[:12]}..., and this file has {sha256[:12]}...); "
            "push under a new name with --name and let learned.model of the policy name it"
        )


def _refuse_other_bytes(found: Object, where: Key, name: str, data: bytes) -> None:
    if found["metadata"].get("deletionTimestamp"):
        raise Failed(f"ConfigMap {where} is being deleted; wait until it is gone")
    labels = found["metadata"].get("labels") or {}
    same = binary_of(found, ConfigMapKeyRef(name=where.name, key=KEY)) == data
    if labels.get(MODEL_LABEL) != name and not same:
        raise Failed(f"ConfigMap {where} is not of this model; rename it, or choose another name with --name")
    if not same and found.get("immutable"):
        raise Failed(
            f"ConfigMap {where} has other bytes and cannot be changed; `kubectl -n {where.namespace} delete configmap "
            f"{where.name}`, then push again"
        )
