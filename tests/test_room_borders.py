"""The import table of the house: which room may import which. Reads the source with `ast`, so nothing has to be importable."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

ALL = {"contract", "policies", "crds", "simulator", "training", "engines", "dataplane", "controllers", "testbed", "grfleet"}
MAY_IMPORT = {
    "contract": set(),
    "policies": set(),
    "crds": {"contract"},
    "simulator": {"contract", "policies"},
    "training": {"simulator", "policies", "contract"},
    "engines": {"contract", "simulator"},
    "dataplane": {"contract", "policies"},
    "controllers": {"contract", "crds", "policies"},
    "operator": {"controllers"},
    "testbed": set(),
    "grfleet": ALL,
    "bench": ALL,
    "charts": {"crds", "controllers"},
}
# The router client is a library for callers: it must not drag the operator in.
NARROWER = {"grfleet/client": {"contract"}}
# Processes of their own; what two of them need lies beside them.
APART = ("dataplane/agent", "dataplane/gateway", "dataplane/picker")
PURE = {"policies": {"kopf", "kubernetes", "httpx", "aiohttp", "logging", "time", "asyncio", "random"}}


def modules() -> list[Path]:
    return sorted(path for room in MAY_IMPORT for path in (ROOT / room).rglob("*.py"))


def imported_roots(path: Path) -> set[str]:
    roots: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            roots.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.relative_to(ROOT)}:{node.lineno}: relative import; file path = import path"
            roots.add((node.module or "").split(".")[0])
    return roots


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_rooms_that_its_own_room_may_see(path: Path) -> None:
    place = str(path.relative_to(ROOT).with_suffix(""))
    room = place.split("/")[0]
    allowed = next((rooms for prefix, rooms in NARROWER.items() if place.startswith(prefix)), MAY_IMPORT[room])
    ours = imported_roots(path) & (ALL | {"bench", "tests"})
    assert ours <= allowed | {room}, f"{place} imports {sorted(ours - allowed - {room})}"


def test_parts_of_the_data_plane_import_nothing_from_each_other_and_what_they_share_nothing_of_theirs() -> None:
    for path in (ROOT / "dataplane").rglob("*.py"):
        own = str(path.parent.relative_to(ROOT))
        modules = {node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
        taken = {part for part in APART if any(f"{name}.".startswith(part.replace("/", ".") + ".") for name in modules)}
        assert taken <= {own}, path.relative_to(ROOT)


@pytest.mark.parametrize("room", sorted(PURE))
def test_pure_rooms_import_no_clock_no_io_and_no_framework(room: str) -> None:
    for path in modules():
        if path.relative_to(ROOT).parts[0] == room:
            assert not imported_roots(path) & PURE[room], path.relative_to(ROOT)


def test_every_room_of_the_design_is_in_the_table() -> None:
    rooms = {path.parent.relative_to(ROOT).parts[0] for path in ROOT.glob("*/__init__.py")}
    assert rooms <= set(MAY_IMPORT) | {"tests"}


def test_there_is_something_to_check() -> None:
    assert len(modules()) > 10
