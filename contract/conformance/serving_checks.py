"""Checks of everything but the split: description, counters, histogram, samples, limits, eviction, epochs, bad input."""

from pathlib import Path

import msgspec
import numpy as np

from contract import engine
from contract.conformance.session import HISTORY_TOKENS, Failed, Session, Skipped, must, must_be_within_pool, user_key
from contract.histogram import MAX_BUCKET, MIN_BUCKET
from contract.ring import SUPPORTED, RingBroken, RingReader
from contract.samples import KIND_EMB, KIND_KV, is_sampled

MONOTONE_BY_DESIGN = "counters only grow within one startId"


async def describe_is_consistent(session: Session) -> None:
    """The description makes sense by itself and agrees with what is observed."""
    described, seen = await session.client.describe(), await session.client.observe()
    must({"emb", "kv"} >= set(described.resizable), f"resizable: unknown caches in {described.resizable}")
    must(described.granule_bytes <= described.pool_bytes, "a granule larger than the pool")
    must(seen.start_id == described.start_id, "observe and describe name different processes")
    must(seen.epoch == described.epoch, "observe and describe name different epochs")
    must(seen.latency.anchor_ms == described.p99_ms, "the histogram has no edge at p99Ms")
    must_be_within_pool(seen.split, described)


async def ready_says_why_not(session: Session) -> None:
    """Ready has no reasons, not ready has at least one."""
    answer = await session.client.ready()
    must(answer.ready != bool(answer.reasons), f"ready={answer.ready} with reasons {answer.reasons}")


async def counters_count_and_never_shrink(session: Session) -> None:
    """Each served request shows in the counters; hits never exceed what was asked."""
    before = await session.client.observe()
    answers = [await session.rank(who) for who in (100, 101, 100)]
    after = await session.client.observe()
    must(after.counters.requests == before.counters.requests + 3, "three requests served, not three counted")
    rows = sum(answer.emb_rows_asked for answer in answers)
    must(after.counters.emb.rows_asked - before.counters.emb.rows_asked == rows, "embedding rows asked are not counted")
    kv = after.counters.kv
    asked = kv.tokens_asked - before.counters.kv.tokens_asked
    must(asked == 3 * HISTORY_TOKENS, f"{3 * HISTORY_TOKENS} KV tokens asked, {asked} counted")
    hits = kv.tokens_hit_hbm + kv.tokens_hit_dram + kv.tokens_hit_ssd
    must(hits <= kv.tokens_asked, "more KV tokens hit than asked")
    must(after.counters.emb.rows_hit <= after.counters.emb.rows_asked, "more embedding rows hit than asked")
    must(after.clock_ms >= before.clock_ms, "the clock went back")
    last = await session.client.observe()
    for older, newer in ((before, after), (after, last)):
        for old, new in zip(numbers(older.counters), numbers(newer.counters), strict=True):
            must(new >= old, MONOTONE_BY_DESIGN)


async def a_user_hits_its_cached_prefix(session: Session) -> None:
    """The second request of a user finds the history of the first."""
    if not await session.kv_holds_users():
        raise Skipped("the KV cache is too small to tell")
    await session.rank(200)
    answer = await session.rank(200, tokens=600)
    must(answer.kv_tokens_hit > 0, "nothing of the user's history was cached")
    must(answer.kv_tokens_hit <= 600, "more tokens hit than the request has")


async def histogram_counts_every_request_once(session: Session) -> None:
    """Bucket counts add up to the requests served, within the buckets that the contract has."""
    await session.rank(300)
    seen = await session.client.observe()
    counts = seen.latency.counts
    must(sum(counts.values()) == seen.counters.requests, "the histogram does not add up to the requests served")
    must(all(MIN_BUCKET <= bucket <= MAX_BUCKET for bucket in counts), "a bucket outside the contract's range")
    must(all(count >= 0 for count in counts.values()), "a negative count")


async def latency_is_queue_plus_service(session: Session) -> None:
    """The parts of a latency add up."""
    answer = await session.rank(301)
    parts = answer.queue_ms + answer.service_ms
    must(abs(parts - answer.latency_ms) <= 1e-6 * max(1.0, answer.latency_ms), f"{answer.latency_ms} ms, parts {parts} ms")


async def samples_follow_the_cursor(session: Session) -> None:
    """Received plus lost is what was produced; reading on from the cursor repeats nothing; keys obey the sampling rule."""
    described = await session.client.describe()
    _, cursor, _ = await session.client.samples(0)
    for who in range(400, 408):
        await session.rank(who)
    records, following, lost = await session.client.samples(cursor)
    must(following - cursor == len(records) + lost, "records and lost do not add up to the cursor")
    if not lost and len(records):
        must(int(records["sequence"][0]) == cursor & 0xFFFF_FFFF, "the first record is not the one at the cursor")
        sequence = records["sequence"].astype(np.uint32)
        must(bool(np.all(sequence[1:] - sequence[:-1] == 1)), "sequence numbers have gaps that lost does not tell")
    kinds = records["kind_size"] >> 30
    must(bool(np.all((kinds == KIND_KV) | (kinds == KIND_EMB))), "a kind that the contract does not have")
    for kind, one_in in ((KIND_KV, described.sampling.users_one_in), (KIND_EMB, described.sampling.rows_one_in)):
        keys = records["key"][kinds == kind].tolist()
        must(all(is_sampled(key, one_in) for key in keys), f"kind {kind}: a key outside the sample of one in {one_in}")
    again, cursor, lost = await session.client.samples(following)
    must(len(again) == 0 and lost == 0 and cursor == following, "reading on without new accesses gave something")


async def samples_in_the_ring_are_those_of_the_answers(session: Session) -> None:
    """The ring that the description names is this process's, and holds what GET /samples gives by the time it is given."""
    described = await session.client.describe()
    if described.samples_ring is None:
        raise Skipped("the engine offers no ring")
    if not session.url.startswith("unix:") or not SUPPORTED:
        raise Skipped("a ring is read beside a Unix socket, on a machine that keeps stores in order")
    try:
        ring = RingReader(Path(session.url.removeprefix("unix:")).with_name(described.samples_ring), start_id=described.start_id)
        _, cursor, _ = await session.client.samples(0)
        ring.read(cursor)
        for who in range(420, 428):
            await session.rank(who)
        records, following, lost = await session.client.samples(cursor)
        found, reached, missed = ring.read(cursor)
    except RingBroken as error:
        raise Failed(str(error)) from error
    must(reached >= following, f"the ring ends at {reached}, GET /samples at {following}")
    if not lost and not missed:
        must(found[: len(records)].tobytes() == records.tobytes(), "the ring holds other records than GET /samples gives")
    ring.close()


async def samples_of_a_wrong_cursor_start_over(session: Session) -> None:
    """A cursor from another life of the engine gets the oldest records, never an error or a gap unsaid."""
    records, cursor, lost = await session.client.samples(1 << 60)
    must(cursor < 1 << 60, "the engine adopted a cursor that it never gave")
    must(lost >= 0 and len(records) <= cursor, "more records than were ever produced")


async def residency_tells_whose_state_changed(session: Session) -> None:
    """Optional: users by their keys with the tokens held, what changed since a cursor and nothing twice, gone ones with zeros."""
    first = await session.client.residency(0)
    if first is None:
        raise Skipped("the engine does not tell whose state it holds")
    described = await session.client.describe()
    must(first.start_id == described.start_id, "residency and describe name different processes")
    must(first.generation == described.epoch, "the generation is not the epoch")
    must(first.since == 0, "an answer to cursor 0 that tells only a part")
    strange = await session.client.residency(1 << 60)
    must(strange is not None and strange.since == 0, "a cursor that was never given does not start over")
    if not await session.kv_holds_users():
        raise Skipped("the KV cache is too small to tell")
    await session.rank(700)
    await session.rank(701)
    await session.idle()
    told = await session.client.residency(first.cursor)
    assert told is not None
    must(told.since == first.cursor, "a cursor that was just given starts over")
    keys = [state.key for state in told.users]
    must(keys[:2] == [user_key(701), user_key(700)], "the users of the last two requests are not the first two, latest first")
    must(len(set(keys)) == len(keys), "a user twice in a report")
    must(all(state.tokens_hbm > 0 for state in told.users[:2]), "a user was just served, and nothing of it is in HBM")
    await session.client.evict(engine.UsersRequest(user_keys=[user_key(700)]))
    after = await session.client.residency(told.cursor)
    assert after is not None
    must([state.key for state in after.users if state.gone] == [user_key(700)], "an evicted user is not told as gone")
    last = await session.client.residency(after.cursor)
    must(last is not None and not last.users and last.cursor == after.cursor, "reading on without a change gave something")


async def limits_follow_revisions(session: Session) -> None:
    """PUT /limits has the same rules as the split: successor applied, repetition the same, lower stale, gap conflict."""
    now = (await session.client.put_limits(limits(0, slots=1 << 40))).limits
    following = limits(now.revision + 1, slots=now.pre_infer_slots, size=now.pre_infer_bytes)
    statuses = [(await session.client.put_limits(following)).status for _ in range(2)]
    must(statuses == [engine.SplitStatus.APPLIED] * 2, f"successor and repetition: {[s.value for s in statuses]}")
    stale = await session.client.put_limits(limits(now.revision, slots=now.pre_infer_slots))
    must(stale.status == engine.SplitStatus.STALE, f"an older revision: {stale.status.value}")
    gap = await session.client.put_limits(limits(now.revision + 3, slots=now.pre_infer_slots))
    must(gap.status == engine.SplitStatus.CONFLICT, f"a gap: {gap.status.value}")


async def pre_infer_above_the_slots_is_refused(session: Session) -> None:
    """Without slots nothing is pre-inferred; the refusal says why."""
    before = (await session.client.put_limits(limits(0, slots=1 << 40))).limits
    await session.client.put_limits(limits(before.revision + 1, slots=0, size=before.pre_infer_bytes))
    described = await session.client.describe()
    request = engine.PreInferRequest(
        request_id="conformance-prefix", user_key=user_key(500), model_version=described.model.version, history_tokens=64
    )
    answer = await session.client.pre_infer(request)
    must(not answer.accepted and bool(answer.reason), "accepted without slots, or refused without a reason")
    restored = limits(before.revision + 2, slots=before.pre_infer_slots, size=before.pre_infer_bytes)
    await session.client.put_limits(restored)


async def evicted_users_are_gone(session: Session) -> None:
    """Evicting an idle user frees its bytes, so that its next request hits nothing; evicting an unknown one affects nobody."""
    unknown, known = (engine.UsersRequest(user_keys=[user_key(who)]) for who in (600, 601))
    must((await session.client.evict(unknown)).affected == 0, "a user that never came was evicted")
    must((await session.client.prefetch(unknown)).affected == 0, "a user that never came was prefetched")
    if not await session.kv_holds_users():
        raise Skipped("the KV cache is too small to tell")
    await session.rank(601)
    await session.idle()
    answer = await session.client.evict(known)
    must(answer.affected == 1 and answer.bytes > 0, f"an idle user was not evicted: {answer.affected}, {answer.bytes} bytes")
    must((await session.rank(601)).kv_tokens_hit == 0, "an evicted user still hits")


async def invalidation_begins_an_epoch(session: Session) -> None:
    """Emptied caches are a new epoch of the same process."""
    before = await session.client.observe()
    await session.client.invalidate(engine.InvalidateRequest(everything=True))
    after = await session.client.observe()
    must(after.start_id == before.start_id, "the startId changed without a restart")
    must(after.epoch > before.epoch, "the caches were emptied within one epoch")
    must(after.counters.requests >= before.counters.requests, MONOTONE_BY_DESIGN)


async def a_drain_is_told_and_taken_back(session: Session) -> None:
    """POST /drain makes the engine not ready while it serves on; `{"draining": false}` makes it ready again."""
    before = await session.client.ready()
    must((await session.client.drain()).draining, "the answer to a drain does not say draining")
    told, seen = await session.client.ready(), await session.client.observe()
    must(not told.ready and bool(told.reasons), "a draining engine says that it is ready, or gives no reason")
    must(seen.draining is not False, "observe says that the engine does not drain")
    must((await session.client.drain()).draining, "a second drain takes the first one back")
    await session.rank(1)
    if (await session.client.drain(draining=False)).draining:
        raise Skipped("this engine cannot take a drain back; it is still draining, so restart it")
    must((await session.client.observe()).draining is not True, "observe says that the engine still drains")
    must((await session.client.ready()).ready == before.ready, "the engine is not as ready as before the drain")


async def bad_input_is_answered_with_the_field(session: Session) -> None:
    """What is not the contract gets a 4xx that names the field, never a 5xx or a stack trace."""
    cases = (
        ("PUT", "/split", b'{"startId":"x","revision":"one","embBytes":0,"kvBytes":0,"refillBytesPerSecond":0}', "revision"),
        ("PUT", "/split", b'{"startId":"x","revision":1,"embBytes":-1,"kvBytes":0,"refillBytesPerSecond":0}', "embBytes"),
        ("POST", "/rank", b'{"requestId":"x"}', "userKey"),
        ("POST", "/evict", b'{"userKeys":["not a key"]}', "userKeys"),
        ("PUT", "/split", b"\xff not json", ""),
        ("POST", "/rank", b"[" * 100_000, ""),
        ("POST", "/rank", b'{"fieldOfTomorrow":' + b"[" * 100_000, ""),
        ("POST", "/evict", b'{"userKeys":["' + b"a" * 2_000_000 + b'"]}', ""),
        ("GET", "/samples?cursor=-1", b"", "cursor"),
        ("GET", "/no-such-route", b"", ""),
    )
    for method, path, content, field in cases:
        response = await session.raw(method, path, content=content)
        text = response.text
        must(400 <= response.status_code < 500, f"{method} {path} with bad input: status {response.status_code}")
        must(field in text, f"{method} {path}: the answer does not name {field}: {text[:120]!r}")
        must("Traceback" not in text, f"{method} {path}: a stack trace in the answer")


def limits(revision: int, *, slots: int, size: int = 0) -> engine.LimitsRequest:
    return engine.LimitsRequest(revision=revision, pre_infer_slots=slots, pre_infer_bytes=size)


def numbers(counters: msgspec.Struct) -> list[float]:
    """Return all counters as a flat list."""
    found: list[float] = []
    for value in msgspec.structs.asdict(counters).values():
        found += numbers(value) if isinstance(value, msgspec.Struct) else [value]
    return found


CHECKS = (
    describe_is_consistent,
    ready_says_why_not,
    counters_count_and_never_shrink,
    a_user_hits_its_cached_prefix,
    histogram_counts_every_request_once,
    latency_is_queue_plus_service,
    samples_follow_the_cursor,
    samples_in_the_ring_are_those_of_the_answers,
    samples_of_a_wrong_cursor_start_over,
    residency_tells_whose_state_changed,
    limits_follow_revisions,
    pre_infer_above_the_slots_is_refused,
    evicted_users_are_gone,
    invalidation_begins_an_epoch,
    bad_input_is_answered_with_the_field,
    a_drain_is_told_and_taken_back,
)
