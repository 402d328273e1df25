"""Where programs come from: the order of the search, downloads, builds, the lock, and what an error says."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from testbed import binaries, go_build, release
from testbed.binaries import BinariesMissingError, cached_path, ensure_binaries, find_binaries
from testbed.versions import PROGRAMS

ETCD = PROGRAMS["etcd"]


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty cache, no explicit directory, and no Go."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in binaries.ASSET_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(go_build.shutil, "which", lambda name: None)
    return tmp_path


def program_file(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def offline(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("no route", request=request)


def downloader(handler: Callable[[httpx.Request], httpx.Response] = offline) -> release.Downloader:
    return release.Downloader(httpx.MockTransport(handler))


def site(files: dict[str, bytes]) -> Callable[[httpx.Request], httpx.Response]:
    """A web site that has exactly these files, by the end of their address."""

    def answer(request: httpx.Request) -> httpx.Response:
        found = next((body for end, body in files.items() if str(request.url).endswith(end)), None)
        return httpx.Response(404) if found is None else httpx.Response(200, content=found)

    return answer


def archive(member: str, body: bytes) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w:gz") as opened:
        info = tarfile.TarInfo(member)
        info.size = len(body)
        opened.addfile(info, io.BytesIO(body))
    return output.getvalue()


def etcd_release(*, checksum: str | None = None) -> dict[str, bytes]:
    stem = f"etcd-v{ETCD.module.version}-linux-amd64"
    packed = archive(f"{stem}/etcd", b"the released etcd")
    right = hashlib.sha256(packed).hexdigest()
    sums = f"{'0' * 64}  other.tar.gz\n{checksum or right}  {stem}.tar.gz\n"
    return {"SHA256SUMS": sums.encode(), f"{stem}.tar.gz": packed}


@pytest.fixture
def on_amd64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release.platform, "machine", lambda: "x86_64")


# The search -------------------------------------------------------------------------------------------------------


def test_an_explicit_directory_wins_over_the_older_variable_and_the_cache(
    empty_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program_file(cached_path(ETCD))
    assert find_binaries(["etcd"]).origins == {"etcd": "cache"}

    program_file(empty_machine / "kubebuilder" / "etcd")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(empty_machine / "kubebuilder"))
    assert find_binaries(["etcd"]).origins == {"etcd": "KUBEBUILDER_ASSETS"}

    ours = program_file(empty_machine / "ours" / "etcd")
    monkeypatch.setenv("GRFLEET_TESTBED_ASSETS", str(empty_machine / "ours"))
    assert find_binaries(["etcd"]).paths == {"etcd": ours}


def test_an_explicit_directory_without_the_program_is_passed_over_for_that_program_only(
    empty_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program_file(empty_machine / "ours" / "etcd")
    program_file(cached_path(PROGRAMS["kubectl"]))
    monkeypatch.setenv("GRFLEET_TESTBED_ASSETS", str(empty_machine / "ours"))

    assert find_binaries(["etcd", "kubectl", "helm"]).origins == {"etcd": "GRFLEET_TESTBED_ASSETS", "kubectl": "cache"}


def test_a_file_that_cannot_be_executed_is_not_a_program(empty_machine: Path) -> None:
    program_file(cached_path(ETCD)).chmod(0o644)

    assert find_binaries(["etcd"]).paths == {}


def test_the_cache_is_keyed_by_version() -> None:
    assert cached_path(ETCD).parent.name == f"etcd-v{ETCD.module.version}"
    assert cached_path(PROGRAMS["kubectl"]).parent == cached_path(PROGRAMS["kube-apiserver"]).parent


# Releases ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on_amd64")
def test_a_verified_release_is_used_before_a_build() -> None:
    found = ensure_binaries(["etcd"], downloader=downloader(site(etcd_release())))

    assert found.origins == {"etcd": "release"}
    assert found["etcd"].read_bytes() == b"the released etcd"
    assert os.access(found["etcd"], os.X_OK)
    assert [path.name for path in found["etcd"].parent.iterdir()] == ["etcd"]


@pytest.mark.usefixtures("on_amd64")
def test_a_plain_kubernetes_program_is_checked_against_the_sum_beside_it() -> None:
    body = b"kubectl"
    files = {"/amd64/kubectl": body, "/kubectl.sha256": hashlib.sha256(body).hexdigest().encode()}

    found = ensure_binaries(["kubectl"], downloader=downloader(site(files)))

    assert found["kubectl"].read_bytes() == body


@pytest.mark.usefixtures("on_amd64")
@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (etcd_release(checksum="f" * 64), "published is ffff"),
        ({**etcd_release(), "SHA256SUMS": b"nothing here"}, "no checksum for"),
        ({**etcd_release(), "SHA256SUMS": b"<html>sign in</html>"}, "no checksum for"),
        ({"SHA256SUMS": etcd_release()["SHA256SUMS"]}, "404"),
        ({}, "404"),
    ],
)
def test_nothing_unverified_is_ever_kept(files: dict[str, bytes], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(go_build, "ensure_go", no_go)

    with pytest.raises(BinariesMissingError, match=reason):
        ensure_binaries(["etcd"], downloader=downloader(site(files)))

    assert list(cached_path(ETCD).parent.iterdir()) == []


@pytest.mark.usefixtures("on_amd64")
def test_an_archive_with_the_right_sum_but_without_the_program_is_refused(tmp_path: Path) -> None:
    packed = archive("other", b"x")
    stem = f"etcd-v{ETCD.module.version}-linux-amd64"
    sums = f"{hashlib.sha256(packed).hexdigest()}  {stem}.tar.gz".encode()

    with pytest.raises(release.ReleaseError, match="does not hold"):
        downloader(site({"SHA256SUMS": sums, f"{stem}.tar.gz": packed})).fetch(ETCD, tmp_path / "etcd")

    assert list(tmp_path.iterdir()) == []


def test_a_host_that_does_not_answer_is_asked_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def silent(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        raise httpx.ConnectTimeout("slow", request=request)

    releases = downloader(silent)
    for name in ("kube-apiserver", "kubectl", "kube-apiserver"):
        with pytest.raises(release.ReleaseError, match="answer"):
            releases.fetch(PROGRAMS[name], tmp_path / name, machine="x86_64")

    assert len(asked) == 1


def test_a_download_that_drags_on_is_given_up(tmp_path: Path) -> None:
    ticks = iter(range(0, 10_000, 100))
    files = etcd_release()
    releases = release.Downloader(httpx.MockTransport(site(files)), clock=lambda: float(next(ticks)) * 2)

    with pytest.raises(release.ReleaseError, match="building is faster"):
        releases.fetch(ETCD, tmp_path / "etcd", machine="x86_64")

    assert list(tmp_path.iterdir()) == []


def test_a_proxy_setting_that_cannot_be_used_is_a_failed_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "gopher://127.0.0.1:1")

    with pytest.raises(release.ReleaseError, match="proxy"):
        release.Downloader().fetch(ETCD, tmp_path / "etcd", machine="x86_64")


def test_an_unknown_machine_has_no_release(tmp_path: Path) -> None:
    with pytest.raises(release.ReleaseError, match="no release for riscv64"):
        downloader().fetch(ETCD, tmp_path / "etcd", machine="riscv64")


# Builds -----------------------------------------------------------------------------------------------------------


def no_go(tools: Path, progress: Callable[[str], None]) -> Path:
    raise go_build.BuildError("Go >= 1.24: none on PATH")


def fake_go(path: Path, *, version: str = "go1.24.0", build: str = 'echo built > "$out"; chmod +x "$out"') -> Path:
    """A `go` that knows `version` and `build`; each build is noted in the file `builds` beside it."""
    script = f"""#!/bin/sh
if [ "$1" = version ]; then echo "go version {version} linux/amd64"; exit 0; fi
echo "$PWD $CGO_ENABLED $*" >> {path.parent}/builds
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
{build}
"""
    return program_file(path, script)


@pytest.fixture
def go(empty_machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = fake_go(empty_machine / "sdk" / "go")
    monkeypatch.setattr(go_build.shutil, "which", lambda name: str(path))
    return path


def test_a_program_is_built_from_its_pinned_module_when_nothing_else_has_it(go: Path) -> None:
    lines: list[str] = []

    found = ensure_binaries(["kubectl", "etcd"], progress=lines.append, downloader=downloader())

    assert found.origins == {"kubectl": "build", "etcd": "build"}
    kubectl, etcd = (go.parent / "builds").read_text().splitlines()
    assert kubectl.startswith(f"{PROGRAMS['kubectl'].module.directory} 0 build -trimpath -ldflags -s -w -X k8s.io/")
    assert f"gitVersion=v{PROGRAMS['kubectl'].module.version}" in kubectl
    assert etcd.endswith(ETCD.package)
    assert any(line.startswith("build kubectl") and "done in" in line for line in lines)
    assert find_binaries(["etcd"]).origins == {"etcd": "cache"}


def test_a_build_that_fails_leaves_nothing_and_shows_what_the_compiler_said(go: Path) -> None:
    fake_go(go, build='echo half > "$out"; echo "module lookup failed" >&2; exit 1')

    with pytest.raises(BinariesMissingError, match="module lookup failed"):
        ensure_binaries(["etcd"], downloader=downloader())

    assert list(cached_path(ETCD).parent.iterdir()) == []


def test_an_error_says_what_was_tried_and_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(go_build, "ensure_go", no_go)

    with pytest.raises(BinariesMissingError) as caught:
        ensure_binaries(["etcd"], downloader=downloader())

    message = str(caught.value)
    for part in ("etcd 3.", "$GRFLEET_TESTBED_ASSETS", "does not answer", "none on PATH", "Install Go >= 1.24"):
        assert part in message


@pytest.mark.parametrize(
    ("answer", "version"),
    [("go1.24", (1, 24)), ("go1.26.8", (1, 26)), ("go1.9.2", (1, 9)), ("devel", None), ("gibberish", None)],
)
def test_the_version_of_go_is_understood(tmp_path: Path, answer: str, version: tuple[int, int] | None) -> None:
    assert go_build.go_version(fake_go(tmp_path / "go", version=answer)) == version


def test_a_go_that_is_too_old_is_passed_over_with_the_reason(go: Path, tmp_path: Path) -> None:
    fake_go(go, version="go1.19.8")

    assert go_build.find_go(tmp_path / "tools") == (None, f"Go >= 1.24: {go} is 1.19")

    installed = fake_go(tmp_path / "tools" / "go" / "bin" / "go")
    assert go_build.find_go(tmp_path / "tools") == (installed, "")


def test_an_interrupted_build_ends_the_compiler_and_leaves_nothing(
    go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(go, build='echo half > "$out"; echo $$ > ' + str(tmp_path / "pid") + "; sleep 60")

    def interrupt(line: str) -> None:
        if "0 s" in line:
            raise KeyboardInterrupt

    monkeypatch.setattr(go_build, "_HEARTBEAT_SECONDS", 0.3)
    with pytest.raises(KeyboardInterrupt):
        ensure_binaries(["etcd"], progress=interrupt, downloader=downloader())

    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()
    assert list(cached_path(ETCD).parent.iterdir()) == []


def test_two_processes_never_build_the_same_program_twice(go: Path, empty_machine: Path) -> None:
    fake_go(go, build='sleep 0.5; echo built > "$out"; chmod +x "$out"')
    script = "from testbed import binaries, release; import httpx\n"
    script += "def offline(request): raise httpx.ConnectError('offline')\n"
    script += "d = release.Downloader(httpx.MockTransport(offline))\n"
    script += "print(binaries.ensure_binaries(['etcd'], downloader=d)['etcd'])"
    environment = {**os.environ, "PATH": f"{go.parent}:/usr/bin:/bin"}

    callers = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    answers = [caller.communicate(timeout=60)[0].strip() for caller in callers]

    assert answers == [str(cached_path(ETCD))] * 3
    assert len((go.parent / "builds").read_text().splitlines()) == 1


def test_who_waits_for_another_build_is_told_so(go: Path) -> None:
    lines: list[str] = []
    with binaries.cache_lock(lines.append):
        waiting = threading.Thread(target=lambda: ensure_binaries(["etcd"], progress=lines.append, downloader=downloader()))
        waiting.start()
        while not lines:
            waiting.join(0.01)
    waiting.join(30)

    assert lines[0].startswith("waiting")
    assert cached_path(ETCD).exists()
