"""Layers are the same bytes for the same files, archives hold what a runtime needs, and packages are only ever unpacked."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from testbed import debian
from testbed.debian import DebianError, Tree, ensure_debian_tree
from testbed.images import layers, product
from testbed.images.archive import Image, Layer, read_layer, write_archive, write_layer


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    (folder / "etc").mkdir(parents=True)
    (folder / "etc" / "private").write_text("secret to its owner on this machine, not in an image\n")
    (folder / "etc" / "private").chmod(0o600)
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o700)
    (folder / "link").symlink_to("run")
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    return folder


def read(archive: tarfile.TarFile, name: str) -> Any:
    stream = archive.extractfile(name)
    assert stream is not None, f"{name} is not a file"
    return json.load(stream)


def blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def test_a_layer_depends_on_its_files_alone(files: Path, tmp_path: Path) -> None:
    first = write_layer(files, tmp_path / "first.tar")
    os.utime(files / "run", (1, 1))
    os.utime(files / "etc", (2, 2))

    second = write_layer(files, tmp_path / "second.tar")

    assert first.digest == second.digest == read_layer(first.path).digest
    (files / "run").write_text("#!/bin/bash\n")
    assert write_layer(files, tmp_path / "third.tar").digest != first.digest


def test_files_belong_to_root_and_can_be_read_by_a_pod_of_any_user(files: Path, tmp_path: Path) -> None:
    layer = write_layer(files, tmp_path / "layer.tar", prefix="opt/x")

    with tarfile.open(layer.path) as opened:
        found = {info.name: info for info in opened}
    assert list(found) == ["opt", "opt/x", "opt/x/etc", "opt/x/etc/private", "opt/x/link", "opt/x/run", "opt/x/tmp"]
    assert {(info.uid, info.gid, info.mtime) for info in found.values()} == {(0, 0, 0)}
    modes = {name: info.mode for name, info in found.items() if not info.issym()}
    assert modes["opt/x/etc/private"] == 0o644
    assert modes["opt/x/run"] == 0o755
    assert modes["opt/x/tmp"] == 0o1777
    assert found["opt/x/link"].linkname == "run"


def test_an_archive_holds_a_shared_layer_once_and_names_every_image(files: Path, tmp_path: Path) -> None:
    layer = write_layer(files, tmp_path / "layer.tar")
    images = [Image(f"example.com/{name}:1", [layer], entrypoint=[f"/{name}"], environment={"A": "b"}) for name in "xy"]

    write_archive(tmp_path / "images.tar", images)

    with tarfile.open(tmp_path / "images.tar") as opened:
        names = opened.getnames()
        manifest = read(opened, "manifest.json")
        configs = [read(opened, each["Config"]) for each in manifest]
        index = read(opened, "index.json")["manifests"]
        manifests = [read(opened, blob(each["digest"])) for each in index]
    assert names.count(blob(f"sha256:{layer.digest}")) == 1
    assert [each["RepoTags"] for each in manifest] == [["example.com/x:1"], ["example.com/y:1"]]
    assert [each["annotations"]["io.containerd.image.name"] for each in index] == ["example.com/x:1", "example.com/y:1"]
    assert [blob(each["config"]["digest"]) for each in manifests] == [each["Config"] for each in manifest]
    assert [blob(item["digest"]) for item in manifests[0]["layers"]] == manifest[0]["Layers"]
    assert configs[0]["rootfs"] == {"type": "layers", "diff_ids": [f"sha256:{layer.digest}"]}
    assert configs[1]["config"]["Entrypoint"] == ["/y"]
    assert configs[1]["config"]["Env"] == ["A=b"]
    assert configs[1]["config"]["User"] == "65532:65532"


def test_an_image_names_the_signal_that_stops_it_where_it_is_not_the_usual_one(files: Path, tmp_path: Path) -> None:
    layer = write_layer(files, tmp_path / "layer.tar")
    write_archive(tmp_path / "images.tar", [Image("x:1", [layer], stop_signal="SIGUSR1"), Image("y:1", [layer])])

    with tarfile.open(tmp_path / "images.tar") as opened:
        configs = [read(opened, each["Config"])["config"] for each in read(opened, "manifest.json")]
    assert [config.get("StopSignal") for config in configs] == ["SIGUSR1", None]


def test_a_program_comes_with_its_libraries_where_its_loader_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "layer_directory", lambda: tmp_path)
    program = Path("/bin/ls").resolve()
    layer = layers.program_layer("ls", program, os.environ)
    with tarfile.open(layer.path) as opened:
        names = {name.rpartition("/")[2]: name for name in opened.getnames()}
    assert names[program.name] == f"usr/bin/{program.name}"
    folders = {path.rpartition("/")[0] for name, path in names.items() if ".so" in name and not name.startswith("ld-")}
    assert folders == {names["libc.so.6"].rpartition("/")[0]}


def test_a_layer_that_every_reader_has_is_named_but_left_out(files: Path, tmp_path: Path) -> None:
    layer = write_layer(files, tmp_path / "layer.tar")

    write_archive(tmp_path / "thin.tar", [Image("example.com/x:1", [layer])], omit={layer.digest})

    with tarfile.open(tmp_path / "thin.tar") as opened:
        assert blob(f"sha256:{layer.digest}") not in opened.getnames()
        assert read(opened, "manifest.json")[0]["Layers"] == [blob(f"sha256:{layer.digest}")]


@pytest.mark.parametrize("references", [["a:1", "a:1"], ["a:1"]])
def test_an_archive_that_no_runtime_could_use_is_refused(references: list[str], tmp_path: Path) -> None:
    layer = Layer(tmp_path / "layer.tar", "0" * 64)
    images = [Image(reference, [layer] if len(references) > 1 else []) for reference in references]

    with pytest.raises(ValueError, match="reference of its own and at least one layer"):
        write_archive(tmp_path / "images.tar", images)

    assert list(tmp_path.iterdir()) == []


def test_a_changed_source_makes_a_new_layer_and_the_same_one_is_taken_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "room"
    source.mkdir()
    (source / "a.py").write_text("A = 1\n")

    def make() -> Layer:
        return layers.tree_layer("room", {"/opt/room": source}, {"/opt/bin/x": "#!/bin/sh\n"}, compile_below="/opt/room")

    first = make()
    written = first.path.stat().st_mtime_ns
    assert make() == first
    assert first.path.stat().st_mtime_ns == written
    with tarfile.open(first.path) as opened:
        names = opened.getnames()
    assert "opt/room/a.py" in names
    assert any(name.startswith("opt/room/__pycache__/a.") for name in names), "a read-only root cannot compile later"

    (source / "a.py").write_text("A = 2\n")
    assert make().digest != first.digest


def test_every_command_of_an_image_is_a_console_script_of_the_project() -> None:
    scripts = (Path(product.__file__).parents[2] / "pyproject.toml").read_text()

    assert all(f"{command} = " in scripts for command in product.COMMANDS.values())


def test_the_packages_of_an_extra_are_a_layer_above_those_of_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "_cached", lambda name, key, fill: (name, set(key.splitlines()[1:])))
    (_, common), (name, more) = layers.packages_layer("grfleet"), layers.packages_layer("grfleet", extra="gateway")

    assert name == "gateway-packages", "so that neither takes the other's place in the cache"
    assert {each.split("==")[0] for each in more} >= {"hpack", "protobuf", "xds-protos"}
    assert not more & common


def test_the_picker_alone_has_the_layer_of_its_extra_and_a_node_has_it_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: dict[str, list[str]] = {}

    def note(archive: Path, images: list[Image], *, omit: object) -> None:
        written.update(
            {image.reference.split("/")[-1].split(":")[0]: [layer.digest for layer in image.layers] for image in images}
        )

    monkeypatch.setattr(product, "write_archive", note)
    monkeypatch.setattr(product, "interpreter_layer", lambda: Layer(tmp_path, "python"))
    monkeypatch.setattr(product, "packages_layer", lambda name, extra="": Layer(tmp_path, extra or name))
    monkeypatch.setattr(product, "_application_layer", lambda: Layer(tmp_path, "checkout"))
    product.build(tmp_path)

    usual = ["python", "grfleet", "checkout"]
    assert written.pop("picker") == ["python", "grfleet", "gateway", "checkout"]
    assert written == dict.fromkeys(("operator", "agent", "reference-engine"), usual)
    assert [layer.digest for layer in product.base_layers()] == ["python", "grfleet", "gateway"]


# Packages -----------------------------------------------------------------------------------------------------------


def test_without_apt_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(debian.shutil, "which", lambda name: None)

    with pytest.raises(DebianError, match="needs Debian or Ubuntu"):
        ensure_debian_tree(["containerd"])


def test_programs_of_a_tree_come_before_the_machines_own_and_a_missing_one_is_named(tmp_path: Path) -> None:
    program = tmp_path / "usr" / "sbin" / "thing"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "usr" / "lib" / "x86_64-linux-gnu" / "xtables").mkdir(parents=True)
    tree = Tree(tmp_path)

    environment = tree.environment({"PATH": "/bin", "LD_LIBRARY_PATH": "/mine"})

    assert tree.program("thing") == program
    assert environment["PATH"].split(":").index(str(program.parent)) < environment["PATH"].split(":").index("/bin")
    assert environment["LD_LIBRARY_PATH"] == f"{tmp_path}/usr/lib/x86_64-linux-gnu:/mine"
    assert environment["XTABLES_LIBDIR"] == f"{tmp_path}/usr/lib/x86_64-linux-gnu/xtables"
    with pytest.raises(DebianError, match="no program other"):
        tree.program("other")


def test_an_unpacked_tree_is_used_again_and_other_packages_have_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    debian.tree_path(["a", "b"]).mkdir(parents=True)

    assert ensure_debian_tree(["a", "b"]).root == debian.tree_path(["a", "b"])
    assert debian.find_debian_tree(["a", "c"]) is None
