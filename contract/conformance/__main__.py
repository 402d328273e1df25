"""Command line of the conformance suite: prints the report; exit code 0 when nothing failed, 1 otherwise."""

import argparse
import asyncio
import sys
from pathlib import Path

from contract.conformance.report import Verdict, as_text, run


def main() -> int:
    line = argparse.ArgumentParser(prog="python -m contract.conformance", description="Check an engine against the contract.")
    line.add_argument("url", help="unix:/path/to/socket, http://host:port or https://host:port of an idle engine")
    line.add_argument("--token-file", type=Path, help="file with the bearer token")
    line.add_argument("--wait-s", type=float, default=10.0, help="how long a starting engine may take to answer (default 10)")
    options = line.parse_args()
    try:
        token = options.token_file.read_text().strip() if options.token_file else None
        results = asyncio.run(run(options.url, token=token, wait_s=options.wait_s))
    except (OSError, ValueError) as error:
        line.error(str(error))
    sys.stdout.write(as_text(results) + "\n")
    return int(any(result.verdict is Verdict.FAILED for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
