"""What a text of the contract may look like is said about all of it: nothing goes before or after, not even one newline."""

import importlib
import pkgutil
from collections.abc import Iterator

import msgspec
import pytest

import contract
from contract.residency import UserState


def structs(base: type = msgspec.Struct) -> Iterator[type]:
    for kind in base.__subclasses__():
        if kind.__module__.partition(".")[0] == "contract":
            yield kind
        yield from structs(kind)


def patterns() -> set[str]:
    for module in pkgutil.walk_packages(contract.__path__, "contract."):
        if ".conformance" not in module.name:
            importlib.import_module(module.name)
    found: set[str] = set()

    def walk(info: object) -> None:
        if isinstance(info, msgspec.inspect.StrType) and info.pattern is not None:
            found.add(info.pattern)
        for each in getattr(info, "__struct_fields__", ()):
            inner = getattr(info, each)
            for one in inner if isinstance(inner, tuple) else (inner,):
                if isinstance(one, msgspec.inspect.Type | msgspec.inspect.Field) and not isinstance(
                    one, msgspec.inspect.StructType
                ):
                    walk(one)

    for kind in set(structs()):
        walk(msgspec.inspect.type_info(kind))
    return found


def test_every_pattern_is_about_the_whole_text_as_a_dollar_lets_a_newline_pass() -> None:
    assert len(patterns()) >= 4
    assert [each for each in patterns() if not (each.startswith("^") and each.endswith(r"\Z"))] == []


@pytest.mark.parametrize("wrong", ["a" * 32 + "\n", "\n" + "a" * 32, "A" * 32, "a" * 31, "a" * 33, "a" * 31 + "\u0661"])
def test_a_user_key_is_32_hex_digits_and_nothing_else(wrong: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode({"key": wrong}), type=UserState)
