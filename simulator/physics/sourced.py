"""Numbers with their sources, read from TOML: each field is a table of `value`, `grade` and `source`.

A constant of a physical model is worth what its source is worth, so a file that leaves the source out does not load.
"""

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from importlib.resources.abc import Traversable

DATA = files("simulator.physics") / "data"


class Grade(StrEnum):
    """How a number came about, strongest first."""

    MEASURED = "measured"
    SPECIFICATION = "specification"
    FITTED = "fitted"
    RECALLED = "recalled"
    ASSUMED = "assumed"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where one number comes from."""

    grade: Grade
    source: str


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A parsed file: what it describes, its numbers, and the origin of each."""

    name: str
    summary: str
    values: Mapping[str, float]
    origins: Mapping[str, Origin]


class ProfileError(ValueError):
    """A data file that cannot be used; the message names file and field."""


def parse_sheet(text: str, *, name: str, fields: Iterable[str]) -> Sheet:
    """Parse the TOML of one file that must have exactly `fields`, apart from `summary`.

    By their names, `_share` is within (0, 1]; `_bytes`, `_tokens`, `_units` and rates in bytes are whole; everything is positive
    and finite.

    Raises
    ------
    ProfileError
        For text that is no TOML, missing or unknown fields, a number without source, and values out of range.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{name}: not TOML: {error}") from error
    summary = document.pop("summary", None)
    if not isinstance(summary, str) or not summary:
        raise ProfileError(f"{name}: summary: must say what the file describes")
    wanted = list(fields)
    missing, unknown = [f for f in wanted if f not in document], [f for f in document if f not in wanted]
    if missing or unknown:
        raise ProfileError(f"{name}: missing fields {missing}, unknown fields {unknown}")
    values: dict[str, float] = {}
    origins: dict[str, Origin] = {}
    for field in wanted:
        values[field], origins[field] = _entry(document[field], where=f"{name}: {field}", field=field)
    return Sheet(name=name, summary=summary, values=values, origins=origins)


def read_sheet(path: Traversable, *, fields: Iterable[str]) -> Sheet:
    """Read and parse one file; it is named after the file.

    Raises
    ------
    ProfileError
        As `parse_sheet`, and for a file that cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path.name}: cannot be read: {error}") from error
    return parse_sheet(text, name=path.name.removesuffix(".toml"), fields=fields)


def names_in(folder: str) -> list[str]:
    """Names of the data files that come with grfleet in one folder."""
    return sorted(entry.name.removesuffix(".toml") for entry in (DATA / folder).iterdir() if entry.name.endswith(".toml"))


def shipped(folder: str, name: str) -> Traversable:
    """The data file of that name.

    Raises
    ------
    ProfileError
        When there is none; the message lists those there are.
    """
    known = names_in(folder)
    if name not in known:
        raise ProfileError(f"{name}: no such file among {folder}: {', '.join(known)}")
    return DATA / folder / f"{name}.toml"


def _entry(entry: object, *, where: str, field: str) -> tuple[float, Origin]:
    if not isinstance(entry, dict) or set(entry) != {"value", "grade", "source"}:
        raise ProfileError(f"{where}: must be a table of exactly value, grade and source")
    value, grade, source = entry["value"], entry["grade"], entry["source"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ProfileError(f"{where}: value {value!r} is not a positive finite number")
    if field.endswith("_share") and value > 1:
        raise ProfileError(f"{where}: {value} is a share and may not be above 1")
    if ("bytes" in field or field.endswith(("_tokens", "_units"))) and not float(value).is_integer():
        raise ProfileError(f"{where}: {value} must be whole")
    if grade not in list(Grade):
        raise ProfileError(f"{where}: grade {grade!r} is none of {', '.join(Grade)}")
    if not isinstance(source, str) or not source.strip():
        raise ProfileError(f"{where}: source: must say where the number comes from")
    return value, Origin(grade=Grade(grade), source=source)
