"""Runs helm on the chart for the tests: lint, render to parsed objects, and a shell in which documented commands run."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "grfleet"
VARIANTS = sorted((CHART / "ci").glob("*-values.yaml"))
POLICY_KINDS = ("HBMPolicy", "RoutingPolicy", "PreInferencePolicy")
MONITORING_KINDS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
MONITORED = tuple(f"--api-versions=monitoring.coreos.com/v1/{kind}" for kind in MONITORING_KINDS)
SERVED = (*(f"--api-versions=grfleet.dev/v1alpha1/{kind}" for kind in (*POLICY_KINDS, "AllocatorModel")), *MONITORED)
CLAIM = "grfleet-served"  # roles that allow nothing and only say which release serves

Object = dict[str, Any]
_rendered: dict[tuple[str, ...], str] = {}  # many tests look at the same few renderings


@dataclass(frozen=True)
class Helm:
    """helm with its own caches, so that a test starts cold and leaves nothing in the home directory."""

    program: Path
    home: Path

    def environment(self) -> dict[str, str]:
        """Variables for helm, or for a shell that runs it."""
        places = {f"HELM_{name}_HOME": str(self.home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        return {**os.environ, **places, "HOME": str(self.home)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run helm in the checkout; never raises for its exit code."""
        return subprocess.run(
            [str(self.program), *arguments],
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def render(self, *flags: str, kinds_served: bool = True, namespace: str = "grfleet-system") -> list[Object]:
        """The objects of `helm template`; fails with what helm says."""
        served = SERVED if kinds_served else MONITORED
        command = ("template", "grfleet", str(CHART), "--namespace", namespace, "--kube-version", "1.34.0", *served, *flags)
        if command not in _rendered:
            done = self.run(*command)
            assert done.returncode == 0, done.stderr
            _rendered[command] = done.stdout
        return [each for each in yaml.load_all(_rendered[command], Loader=yaml.CSafeLoader) if each]

    def refusal(self, *flags: str) -> str:
        """What helm says about values that it must refuse."""
        done = self.run("template", "grfleet", str(CHART), "--kube-version", "1.34.0", *SERVED, *flags)
        assert done.returncode != 0, f"not refused: {flags}"
        return done.stderr


def of_kind(objects: Iterable[Object], *kinds: str) -> list[Object]:
    """The objects of these kinds."""
    return [each for each in objects if each["kind"] in kinds]


def the(objects: Iterable[Object], kind: str, name: str | None = None) -> Object:
    """The one object of a kind (and name)."""
    found = [each for each in of_kind(objects, kind) if name is None or each["metadata"]["name"] == name]
    assert len(found) == 1, [each["metadata"]["name"] for each in found]
    return found[0]


def grants_of(role: Object) -> set[tuple[str, str, str]]:
    """Group, resource and verb of everything that a role allows."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def documented_series() -> set[str]:
    """Names of all metrics that docs/metrics.md lists."""
    return set(re.findall(r"^\| `([a-z_0-9]+)`", (ROOT / "docs" / "metrics.md").read_text(), re.M))


def series_of(expression: str) -> set[str]:
    """Names of the metrics that a query selects, those of histograms without the ending."""
    return {name.removesuffix("_bucket") for name in re.findall(r"([a-z_0-9]+)\{", expression)}


_BLOCK = re.compile(r"(?:<!-- (?P<how>run|not run): (?P<what>[^>]*) -->\n)?```bash\n(?P<text>.*?)```", re.S)


def documented_commands() -> Iterator[tuple[str | None, str, str]]:
    """Marker (`run`, `not run` or None), its text, and the commands of each bash block of docs/install.md."""
    for found in _BLOCK.finditer((ROOT / "docs" / "install.md").read_text()):
        yield found["how"], (found["what"] or "").strip(), found["text"]
