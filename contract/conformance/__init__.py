"""Conformance suite of the engine contract: what every engine must answer, as small named checks.

Run it against an idle engine: `python -m contract.conformance URL [--token-file FILE]`. It serves a few requests, moves the
split and puts it back, so it is no suite for an engine in production.
"""

from contract.conformance.report import Result, Verdict, as_text, run

__all__ = ["Result", "Verdict", "as_text", "run"]
