"""HTTP sessions whose answers are bounded in bytes and in time, and which follow nobody elsewhere.

requests bounds the wait for each piece of an answer, not the answer: a server that sends forever, or a byte now and then, would
hold a thread and its memory for good.
"""

from __future__ import annotations

import io
import time
from typing import Any

import requests
from requests.exceptions import RequestException, Timeout
from urllib3.exceptions import HTTPError

MAX_ANSWER_BYTES = 16 << 20
"""A pool of 1024 instances has some 200 KB an answer."""
_PIECE_BYTES = 1 << 16


class Unbounded(RequestException):
    """The answer is larger than any that is meant."""


class Redirected(RequestException):
    """The server names another address; people name it, servers do not."""


class BoundedSession(requests.Session):
    """A session that reads at most so many bytes, after decompression, in at most the seconds that a call gives.

    Every failure is a RequestException.
    """

    def request(self, method: str, url: str | bytes, *, timeout: Any = None, **more: Any) -> requests.Response:  # type: ignore[override]  # the client names all but these two
        """As requests.Session.request; `timeout` in seconds is that of the whole answer as well."""
        end_s = None if timeout is None else time.monotonic() + float(timeout)
        more |= {"stream": True, "allow_redirects": False}
        response = super().request(method, url, timeout=timeout, **more)
        try:
            if response.is_redirect:
                raise Redirected("the answer is a redirect; name the address that it leads to")
            content = _read(response.raw, end_s)
        except (HTTPError, OSError) as error:
            if isinstance(error, RequestException):
                raise
            raise RequestException(f"the answer broke off ({type(error).__name__})") from error
        finally:
            response.close()  # what was read to the end has given its connection back by now
        response.raw = io.BytesIO(content)
        return response


def _read(raw: Any, end_s: float | None) -> bytes:
    pieces, size = [], 0
    while piece := raw.read1(_PIECE_BYTES, decode_content=True):
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise Unbounded(f"the answer is larger than {MAX_ANSWER_BYTES >> 20} MiB")
        if end_s is not None and time.monotonic() > end_s:
            raise Timeout("the answer takes too long")
        pieces.append(piece)
    return b"".join(pieces)
