"""The book of residency: what reports and routed requests say of hot users, bound to one start of each instance.

A report from another start than the one followed, or older than what is known, changes nothing. A user that its instance no
longer names is forgotten after a while, counted on the clock of that instance's reports: while these are missing nobody is
forgotten, the rows only grow old. A request that was just routed counts as residency for a moment, until a report says better.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum

import msgspec

from policies.routing.types import Residency


class Outcome(StrEnum):
    """What became of a report."""

    TAKEN = "Taken"
    FENCED = "Fenced"
    OLD = "Old"


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """State of one user as an instance reports it: tokens by the fastest tier that holds them, and time since it was touched."""

    user_key: str
    hbm: int = 0
    host: int = 0
    ssd: int = 0
    age_ms: float = 0.0


class BookRules(msgspec.Struct, frozen=True, kw_only=True):
    """How much is kept, and for how long.

    Attributes
    ----------
    most_per_instance
        Greatest number of users of one instance; the smallest states go first.
    forget_ms
        A user that reports have not named for so long is forgotten.
    speculative_ms
        How long a routed request counts without a report.
    silent_ms
        An instance that has not reported for so long is silent.
    """

    most_per_instance: int = 5_000
    forget_ms: float = 300_000.0
    speculative_ms: float = 2_000.0
    silent_ms: float = 10_000.0


class _Page:
    """What is known of one start of one instance."""

    def __init__(self, start_id: str) -> None:
        self.start_id = start_id
        self.generation = -1
        self.cursor = -1
        self.heard_ms: float | None = None
        self.reported: dict[str, Residency] = {}
        self.routed: dict[str, Residency] = {}


class ResidencyBook:
    """What is known of hot users, by instance.

    Not pure, but without clock and IO: the same calls in the same order leave the same book. Time is any rising clock in ms.
    """

    def __init__(self, rules: BookRules | None = None) -> None:
        self._rules = rules or BookRules()
        self._pages: dict[str, _Page] = {}

    def follow(self, starts: Mapping[str, str]) -> None:
        """Take over who is there: start id by uid. Everything of others, and of other starts, is forgotten."""
        kept = {uid: page for uid, page in self._pages.items() if starts.get(uid) == page.start_id}
        self._pages = {uid: kept.get(uid) or _Page(start_id) for uid, start_id in starts.items()}

    def bound(self, most_per_instance: int) -> None:
        """Keep at most so many users of an instance from its next report on."""
        self._rules = msgspec.structs.replace(self._rules, most_per_instance=most_per_instance)

    def remember(self, *, forget_ms: float, speculative_ms: float) -> None:
        """Keep what is known for other times from now on."""
        self._rules = msgspec.structs.replace(self._rules, forget_ms=forget_ms, speculative_ms=speculative_ms)

    def report(
        self,
        *,
        uid: str,
        start_id: str,
        generation: int,
        users: Iterable[Tokens],
        now_ms: float,
        cursor: int = 0,
        gone: Iterable[str] = (),
        whole: bool = False,
    ) -> Outcome:
        """Take over a report, or a page of one, and say what became of it.

        Parameters
        ----------
        uid, start_id
            Who reports.
        generation, cursor
            What it is: an older generation, or an older cursor of the same one, is old. A new generation begins with nothing of
            the one before, as after caches were emptied.
        users
            States that it names.
        gone
            Keys of users whose state it has dropped.
        whole
            It begins anew: nothing of what was reported before counts any more, nor does the cursor, which one who counts wrong
            may have told too high.
        """
        page = self._pages.get(uid)
        if page is None or page.start_id != start_id:
            return Outcome.FENCED
        if generation < page.generation or (generation == page.generation and cursor < page.cursor and not whole):
            return Outcome.OLD
        if whole or generation > page.generation:
            page.reported.clear()
        page.generation, page.cursor, page.heard_ms = generation, cursor, now_ms
        for key in gone:
            page.reported.pop(key, None)
            page.routed.pop(key, None)
        for tokens in users:
            if max(tokens.hbm, tokens.host, tokens.ssd) <= 0:
                page.reported.pop(tokens.user_key, None)
                continue
            page.reported[tokens.user_key] = Residency(
                user_key=tokens.user_key,
                instance_uid=uid,
                start_id=start_id,
                kv_tokens_hbm=max(tokens.hbm, 0),
                kv_tokens_host=max(tokens.host, 0),
                kv_tokens_ssd=max(tokens.ssd, 0),
                seen_ms=now_ms,
            )
            page.routed.pop(tokens.user_key, None)
        self._forget(page)
        return Outcome.TAKEN

    def routed(self, user_key: str, *, uid: str, tokens: int, now_ms: float) -> None:
        """Expect that a request just sent to an instance leaves so many tokens of the user in its HBM."""
        page = self._pages.get(uid)
        if page is None or tokens <= 0:
            return
        if len(page.routed) >= self._rules.most_per_instance:
            self._drop_expired(page, now_ms)
        if user_key in page.routed or len(page.routed) < self._rules.most_per_instance:
            page.routed[user_key] = Residency(
                user_key=user_key,
                instance_uid=uid,
                start_id=page.start_id,
                kv_tokens_hbm=tokens,
                seen_ms=now_ms,
                speculative=True,
            )

    def rows(self, now_ms: float) -> list[Residency]:
        """Return what is known, sorted by instance and user; speculation only while it counts."""
        out: list[Residency] = []
        for uid in sorted(self._pages):
            page = self._pages[uid]
            self._drop_expired(page, now_ms)
            known = page.reported | page.routed
            out.extend(known[key] for key in sorted(known))
        return out

    def strays(self, now_ms: float, *, home: Callable[[str], str | None], also: Collection[str] = ()) -> list[Residency]:
        """Return all rows of the users that have state elsewhere than at home, and of those in `also`; in no order.

        Of a hundred thousand users whose state lies where their slots say, this is none: a user that only its home knows has
        nothing to gain elsewhere but a shorter queue, which is no matter of a table.
        """
        found = set(also)
        for uid, page in self._pages.items():
            self._drop_expired(page, now_ms)
            found.update(key for key in page.reported if home(key) != uid)
            found.update(key for key in page.routed if home(key) != uid)
        return [row for page in self._pages.values() for key, row in (page.reported | page.routed).items() if key in found]

    def largest(self, user_key: str) -> int:
        """Return the most tokens of a user that any report names, 0 for none."""
        rows = (page.reported.get(user_key) for page in self._pages.values())
        return max((_tokens(row) for row in rows if row is not None), default=0)

    @property
    def users(self) -> int:
        """How many rows of reports there are, of all instances."""
        return sum(len(page.reported) for page in self._pages.values())

    def silent(self, now_ms: float) -> frozenset[str]:
        """Return the uids of instances that never reported, or not for long."""
        limit = self._rules.silent_ms
        return frozenset(uid for uid, page in self._pages.items() if page.heard_ms is None or now_ms - page.heard_ms > limit)

    def _drop_expired(self, page: _Page, now_ms: float) -> None:
        oldest = now_ms - self._rules.speculative_ms
        page.routed = {key: row for key, row in page.routed.items() if row.seen_ms >= oldest}

    def _forget(self, page: _Page) -> None:
        """Drop users that reports have not named for long, and the smallest states beyond the limit."""
        assert page.heard_ms is not None
        oldest, most = page.heard_ms - self._rules.forget_ms, self._rules.most_per_instance
        page.reported = {key: row for key, row in page.reported.items() if row.seen_ms >= oldest}
        if len(page.reported) > most:
            largest = sorted(page.reported.values(), key=lambda row: (-_tokens(row), row.user_key))[:most]
            page.reported = {row.user_key: row for row in largest}


def _tokens(row: Residency) -> int:
    return row.kv_tokens_hbm + row.kv_tokens_host + row.kv_tokens_ssd
