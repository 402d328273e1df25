"""Command line of `grfleet-agent`. It only reads its arguments and then imports the agent, so that limits on numeric libraries
are set before they load and `--help` stays instant.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from dataplane.memory import in_one_heap

LOG_LEVELS = ("debug", "info", "warning", "error")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one agent until SIGTERM or SIGINT; return the exit code."""
    options = _parser().parse_args(argv)
    if options.intent_key is None and not options.insecure_unsigned_intents:
        sys.stderr.write(
            "grfleet-agent: --intent-key FILE is required: entry public.key of the ConfigMap grfleet-intent-key beside the pool "
            "(or --insecure-unsigned-intents for experiments)\n"
        )
        return 2
    if argv is None:
        in_one_heap()
    # One agent decides ten times a second on small arrays: threads of a linear algebra library would only cost memory.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    if not options.engine.startswith("https:"):
        _do_without_openssl()
    from dataplane.agent.process import ConfigurationError, Settings, run

    try:
        return run(
            Settings(
                engine=options.engine,
                listen=options.listen,
                intent_key_file=options.intent_key,
                instance_uid=options.instance_uid,
                namespace=options.namespace,
                pod_uid=options.pod_uid,
                engine_token_file=options.engine_token_file,
                log_level=options.log_level,
                memory_seconds=options.memory_seconds,
            )
        )
    except ConfigurationError as error:
        sys.stderr.write(f"grfleet-agent: {error}\n")
        return 2


def _do_without_openssl() -> None:
    """Keep libssl and libcrypto, eight megabytes, out of a process that opens no TLS connection.

    asyncio runs without `ssl`, as in a Python that was built without it; `hashlib` has its own SHA-2. Signatures are checked by
    `cryptography`, which brings its own library.
    """
    for module in ("ssl", "_hashlib"):
        sys.modules.setdefault(module, None)  # type: ignore[arg-type]  # the documented way to block an import


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grfleet-agent",
        description="Runs beside one engine: observes it, decides its EMB/KV split inside the last intent, and drives it.",
    )
    parser.add_argument(
        "--engine", required=True, metavar="URL", help="engine contract: unix:/run/grfleet/engine.sock or http://host:port"
    )
    parser.add_argument(
        "--listen",
        default="http://127.0.0.1:0",
        metavar="URL",
        help="agent contract: http://host:port (port 0 takes a free one) or unix:/path; default %(default)s",
    )
    parser.add_argument(
        "--intent-key",
        metavar="FILE",
        help="the operator's Ed25519 public key (entry public.key of the ConfigMap grfleet-intent-key in the pool's namespace): "
        "32 bytes raw, base64 or hexadecimal",
    )
    parser.add_argument(
        "--insecure-unsigned-intents", action="store_true", help="accept intents without a signature; experiments only"
    )
    parser.add_argument("--instance-uid", metavar="UID", help="accept intents for this GRInstance uid only")
    parser.add_argument("--namespace", metavar="NAME", help="accept intents for instances of this namespace only")
    parser.add_argument("--pod-uid", metavar="UID", help="accept intents for the instance of this pod only")
    parser.add_argument("--engine-token-file", metavar="FILE", help="bearer token for an engine on TCP")
    parser.add_argument(
        "--memory-seconds",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="time constant with which the estimators forget old accesses; default %(default)s",
    )
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="default %(default)s")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 1.0 <= value <= 86_400.0:
        raise argparse.ArgumentTypeError("1 to 86400 seconds")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
