"""What an instance is worth: what its agent said a short while ago, and unknown where nobody said."""

from __future__ import annotations

import msgspec
from loop_objects import GIB, USABLE, agent_status

from controllers.agent_book import AgentBook
from controllers.pool.resident import FRESH_SECONDS, resident_bytes


def test_the_state_of_users_counts_as_long_as_the_report_is_fresh() -> None:
    book = AgentBook()
    book.note("u", agent_status(), now_s=100.0)
    assert resident_bytes("u", statuses=book, now_s=101.0) == GIB
    assert resident_bytes("u", statuses=book, now_s=100.0 + FRESH_SECONDS) is not None
    assert resident_bytes("u", statuses=book, now_s=101.0 + FRESH_SECONDS) is None


def test_of_two_instances_whose_caches_are_full_the_one_with_less_state_of_users_is_worth_less() -> None:
    book = AgentBook()
    full = agent_status().split
    assert full is not None
    for uid, kv in (("much", 40 * GIB), ("little", 20 * GIB)):
        split = msgspec.structs.replace(full, used_kv_bytes=kv, used_emb_bytes=USABLE - kv)
        book.note(uid, agent_status(split=split), now_s=100.0)
    much, little = (resident_bytes(uid, statuses=book, now_s=101.0) for uid in ("much", "little"))
    assert little is not None
    assert much is not None
    assert little < much


def test_without_a_report_or_a_split_in_it_nothing_is_known() -> None:
    book = AgentBook()
    book.note("no-split", agent_status(split=None), now_s=100.0)
    assert resident_bytes("no-split", statuses=book, now_s=100.0) is None
    assert resident_bytes("unheard", statuses=book, now_s=100.0) is None
    assert resident_bytes("u", statuses=None, now_s=100.0) is None
