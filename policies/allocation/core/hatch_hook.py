"""Compiles the decision core while grfleet is built or installed, where that is possible; without it numpy decides.

`GRFLEET_BUILD_CORE=skip` builds without it anyway, `require` fails where it cannot be compiled.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PLACE = "policies/allocation/core"


class CoreBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # generic over a configuration that no hook needs
    """Adds the compiled file to a wheel, or puts it beside its source for an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is put together (called by hatchling)."""
        wish = os.environ.get("GRFLEET_BUILD_CORE", "")
        if wish == "skip":
            return
        build = _build_module(Path(self.root) / _PLACE)
        editable = version == "editable"
        try:
            if editable:
                build.compile_core()
                return
            self._folder = tempfile.TemporaryDirectory(prefix="grfleet-core-")
            made = build.compile_core(Path(self._folder.name))
        except (build.CannotCompile, OSError) as why:
            if wish == "require":
                raise
            self.app.display_warning(f"grfleet is built without its compiled core, numpy decides instead: {why}")
            return
        build_data["force_include"][str(made)] = f"{_PLACE}/{made.name}"
        build_data["pure_python"] = False
        build_data["tag"] = _tag(made.name)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled for a wheel (called by hatchling)."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _build_module(folder: Path) -> ModuleType:
    """The module `build` of the source tree, which is not on the path of an isolated build."""
    spec = spec_from_file_location("grfleet_core_build", folder / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tag(name: str) -> str:
    """Tag of a wheel that holds this file: any later Python for abi3, else this one; this platform."""
    from packaging.tags import sys_tags

    own = next(tag for tag in sys_tags() if "manylinux" not in tag.platform and "musllinux" not in tag.platform)
    if ".abi3." in name:
        return f"cp{sys.version_info[0]}{sys.version_info[1]}-abi3-{own.platform}"
    return f"{own.interpreter}-{own.abi}-{own.platform}"
