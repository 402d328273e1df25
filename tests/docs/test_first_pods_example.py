"""The pool of docs/first-pods.md, without a cluster: that it names what the page makes."""

from __future__ import annotations

from pathlib import Path

import yaml

from testbed.images import product

ROOT = Path(__file__).resolve().parents[2]


def test_the_pool_of_the_page_names_the_image_that_is_made_and_the_model_it_serves(tmp_path: Path) -> None:
    pool = yaml.safe_load((ROOT / "docs" / "examples" / "emulated-pool.yaml").read_text())["spec"]
    (engine,) = pool["instances"]["managed"]["template"]["spec"]["containers"]

    assert engine["image"] == product.build_release(tmp_path / "images.tar")["reference-engine"]
    assert f"--model={pool['model']['name']}:{pool['model']['version']}" in engine["args"]
