"""What an instance is worth: what its agent said a short while ago, and unknown where nobody said."""

from __future__ import annotations

from loop_objects import GIB, USABLE, agent_status

from controllers.agent_book import AgentBook
from controllers.pool.resident import FRESH_SECONDS, resident_bytes


def test_both_caches_count_as_long_as_the_report_is_fresh() -> None:
    book = AgentBook()
    book.note("u", agent_status(), now_s=100.0)
    assert resident_bytes("u", statuses=book, now_s=101.0) == USABLE // 2 + GIB
    assert resident_bytes("u", statuses=book, now_s=100.0 + FRESH_SECONDS) is not None
    assert resident_bytes("u", statuses=book, now_s=101.0 + FRESH_SECONDS) is None


def test_without_a_report_or_a_split_in_it_nothing_is_known() -> None:
    book = AgentBook()
    book.note("no-split", agent_status(split=None), now_s=100.0)
    assert resident_bytes("no-split", statuses=book, now_s=100.0) is None
    assert resident_bytes("unheard", statuses=book, now_s=100.0) is None
    assert resident_bytes("u", statuses=None, now_s=100.0) is None
