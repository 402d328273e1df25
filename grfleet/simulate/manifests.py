"""Manifests as people write them for the cluster, read as strictly as `kubectl apply` takes them.

A file may hold several documents and lists. Kinds of ours are checked against their models, unknown fields included; everything
else that stands in the file (Deployments, Secrets) is left alone and named.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from crds.registry import BY_NAME
from crds.schema import structural_schema
from crds.types import API_VERSION, DNS_SUBDOMAIN, GROUP, Resource, explain_invalid
from grfleet.simulate.errors import BadInput

MAX_FILE_BYTES = 1 << 20
MAX_DOCUMENTS = 256
MAX_NAME = 253
R = TypeVar("R", bound=Resource)


@dataclass(frozen=True, kw_only=True)
class Manifests:
    """The objects of one file.

    Attributes
    ----------
    file : Path
    objects : tuple of Resource
        Those of our kinds, in the order of the file.
    others : tuple of str
        What else is in it: kind and name.
    """

    file: Path
    objects: tuple[Resource, ...]
    others: tuple[str, ...]

    def of(self, kind: type[R]) -> list[R]:
        """Return the objects of one kind."""
        return [each for each in self.objects if isinstance(each, kind)]


def read_manifests(path: Path) -> Manifests:
    """Return what a file holds.

    Raises
    ------
    BadInput
        When it cannot be read, is no YAML, or an object of ours has an unknown field or an impossible value.
    """
    objects: list[Resource] = []
    others: list[str] = []
    for number, document in enumerate(_documents(path), start=1):
        where = f"{path}, document {number}"
        if not isinstance(document, Mapping) or not isinstance(document.get("kind"), str):
            raise BadInput(where, "is no Kubernetes object: it has no kind")
        kind, version = document["kind"], document.get("apiVersion")
        name = _name(document)
        if not isinstance(version, str) or not (version == GROUP or version.startswith(f"{GROUP}/")):
            if kind in BY_NAME:
                raise BadInput(f"{where}, {kind} {name}, field apiVersion", f"a {kind} has {API_VERSION}")
            others.append(f"{kind} {name}")
            continue
        if version != API_VERSION or kind not in BY_NAME:
            raise BadInput(
                f"{where}, {kind} {name}", f"{version} has no such kind; known are {', '.join(BY_NAME)} of {API_VERSION}"
            )
        objects.append(_parsed(f"{where}, {kind} {name}", kind, document))
    return Manifests(file=path, objects=tuple(objects), others=tuple(others))


class _OneOfEachKey(yaml.SafeLoader):
    """A safe loader that refuses a key that stands twice in one mapping, of which YAML would keep the last.

    Merge keys are refused as well: a few lines of them can ask for more memory than there is.
    """


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key, _ in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            raise yaml.constructor.ConstructorError(None, None, "merge keys are not read here", key.start_mark)
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} stands here twice", key.start_mark)
            seen.add(key.value)
    return yaml.constructor.BaseConstructor.construct_mapping(loader, node, deep=True)


_OneOfEachKey.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _documents(path: Path) -> list[Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(str(path), f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        raise BadInput(str(path), "is not UTF-8; a manifest is a YAML file") from None
    if len(data) > MAX_FILE_BYTES:
        raise BadInput(str(path), f"more than {MAX_FILE_BYTES} bytes, which no manifest has")
    found: list[Any] = []
    try:
        for document in yaml.load_all(text, Loader=_OneOfEachKey):
            found += _items(document) if document is not None else []
            if len(found) > MAX_DOCUMENTS:
                raise BadInput(str(path), f"more than {MAX_DOCUMENTS} documents")
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise BadInput(f"{path}{line}", f"is no YAML ({error.problem})") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(str(path), "is no YAML of any manifest") from None
    if not found:
        raise BadInput(str(path), "holds no manifest")
    return found


def _items(document: Any) -> list[Any]:
    """The objects of a list, as `kubectl get -o yaml` prints them, or the document itself."""
    if isinstance(document, Mapping) and document.get("kind") == "List" and isinstance(document.get("items"), list):
        return list(document["items"])
    return [document]


def _name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return name if isinstance(name, str) and 0 < len(name) <= MAX_NAME else "without a name"


def _parsed(where: str, kind: str, document: Mapping[str, Any]) -> Resource:
    if re.fullmatch(DNS_SUBDOMAIN, _name(document), re.ASCII) is None:
        raise BadInput(f"{where}, field metadata.name", "is no name that an object can have", then="use a-z, 0-9, - and .")
    known = _schema_of(kind)
    wanted = {key: value for key, value in document.items() if key != "status"}  # what the cluster wrote is no wish
    for field in _unknown(wanted, known, ""):
        then = f"`kubectl explain {BY_NAME[kind].plural}` lists them"
        raise BadInput(f"{where}, field {field}", "there is no such field", then=then)
    try:
        return BY_NAME[kind].model.parse(wanted)  # type: ignore[no-any-return]  # the registry holds kinds of any model
    except ValidationError as error:
        raise BadInput(where, explain_invalid(error)) from None


@lru_cache
def _schema_of(kind: str) -> dict[str, Any]:
    return structural_schema(BY_NAME[kind].model)


def _unknown(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the paths of fields that the schema of the API server does not have."""
    properties, others = schema.get("properties"), schema.get("additionalProperties")
    if isinstance(value, Mapping) and isinstance(properties, Mapping):
        for key, inner in value.items():
            if key in properties:
                yield from _unknown(inner, properties[key], f"{path}{key}.")
            else:
                yield f"{path}{key}"
    elif isinstance(value, Mapping) and isinstance(others, Mapping):
        for key, inner in value.items():
            yield from _unknown(inner, others, f"{path}{key}.")
    elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for place, inner in enumerate(value):
            yield from _unknown(inner, schema["items"], f"{path.removesuffix('.')}[{place}].")
