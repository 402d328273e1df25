"""Starts the operator: ``python operator/main.py``, or ``kopf run -A operator/main.py``, which registers the same.

This folder must never get an ``__init__.py``: it would hide the standard library's ``operator``.
"""

from controllers.runtime import process

if __name__ == "__main__":
    raise SystemExit(process.main())

process.register_for_kopf_run()
