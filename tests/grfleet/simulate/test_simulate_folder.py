"""A result appears whole or not at all, and takes the place of nothing but an older result."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulate_inputs import manifest, pool, requests_file, run

from grfleet.simulate.errors import BadInput
from grfleet.simulate.folder import filled


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def fill(out: Path, text: str, *, then: type[BaseException] | None = None) -> None:
    """Write a result by force, and fail before its end where asked to."""
    with filled(out, force=True) as folder:
        (folder / "result.json").write_text(text)
        if then is not None:
            raise then


def test_a_folder_appears_with_all_its_files(tmp_path: Path) -> None:
    with filled(tmp_path / "deep" / "out", force=False) as folder:
        (folder / "result.json").write_text("{}")
        assert not (tmp_path / "deep" / "out").exists()

    assert names(tmp_path / "deep") == {"out"}
    assert names(tmp_path / "deep" / "out") == {"result.json"}


def test_what_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        fill(tmp_path / "out", "half", then=ZeroDivisionError)

    assert names(tmp_path) == set()


def test_an_older_result_stays_when_its_replacement_fails(tmp_path: Path) -> None:
    fill(tmp_path / "out", "old")
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "out", "new", then=KeyboardInterrupt)

    assert names(tmp_path) == {"out"}
    assert (tmp_path / "out" / "result.json").read_text() == "old"


def test_an_older_result_makes_way_by_force_only_and_leaves_no_file_behind(tmp_path: Path) -> None:
    with filled(tmp_path / "out", force=False) as folder:
        (folder / "result.json").write_text("old")
        (folder / "splits.png").write_text("old")
    with pytest.raises(BadInput, match="--force"), filled(tmp_path / "out", force=False):
        pass
    with filled(tmp_path / "out", force=True) as folder:
        (folder / "result.json").write_text("new")

    assert names(tmp_path) == {"out"}
    assert names(tmp_path / "out") == {"result.json"}


@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_result_stays_whatever_is_asked(tmp_path: Path, force: bool) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years")
    (tmp_path / "thesis" / "result.json").write_text("mine")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "thesis")

    for name, word in (("thesis", "chapter.tex"), ("file", "no folder"), ("link", "no folder")):
        with pytest.raises(BadInput, match=word), filled(tmp_path / name, force=force):
            pass

    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years"
    assert names(tmp_path) == {"thesis", "file", "link"}


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with filled(tmp_path / "out", force=False) as folder:
        (folder / "summary.md").write_text("")

    assert names(tmp_path / "out") == {"summary.md"}


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"--out .*file/out: cannot be written"), filled(tmp_path / "file" / "out", force=False):
        pass


def test_the_commands_refuse_a_taken_folder_before_they_begin(tmp_path: Path) -> None:
    manifests, log = manifest(tmp_path / "pool.yaml", pool()), requests_file(tmp_path / "day.grlog")
    arguments = ("--trace", log, "--pool", manifests)
    first = run("simulate", tmp_path / "out", *arguments, "--level", "reduced")
    (first.out / "note.txt").write_text("do not lose me")

    again = run("oracle", tmp_path / "out", *arguments, "--force")

    assert (first.code, again.code) == (0, 1)
    assert "note.txt" in again.outcome.stderr
    assert (first.out / "note.txt").exists()
