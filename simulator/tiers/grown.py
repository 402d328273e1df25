"""Serving histories that outgrow the model from a tiered store: cut where cutting keeps state usable, computed anew where not."""

from simulator.tiers.histories import HistoryBook, Visit
from simulator.tiers.store import TieredStore
from simulator.tiers.store_types import Served


def serve_grown(store: TieredStore, book: HistoryBook, user: int, total_tokens: int, *, now_ms: float) -> tuple[Visit, Served]:
    """Serve a user whose whole history, with all that was ever cut, has `total_tokens`.

    Raises
    ------
    ValueError
        When cuts of the book are not whole chunks of the store: what the host has would begin inside a chunk.
    """
    if book.positions.decoupled and book.cut_tokens % store.config.chunk_tokens:
        raise ValueError(f"cut_tokens: {book.cut_tokens} is not a multiple of the chunk, {store.config.chunk_tokens}")
    store.advance(now_ms)
    stored = store.hbm_tokens(user) > 0 or store.host_tokens(user) > 0
    visit = book.visit(user, total_tokens, stored=stored)
    if not visit.usable:
        store.forget(user)
    elif visit.dropped_tokens:
        store.cut(user, visit.dropped_tokens)
    return visit, store.serve(user, visit.tokens, now_ms=now_ms)
