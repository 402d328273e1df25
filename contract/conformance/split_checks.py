"""Checks of PUT /split: revisions, adoption, deferral, the pool."""

from contract.conformance.session import ACCEPTED, Session, Skipped, must, must_be_within_pool
from contract.engine import SplitAnswer, SplitState, SplitStatus


async def split_successor_is_applied(session: Session) -> None:
    """current + 1 with the limits in force is applied and becomes the revision in force."""
    now = await session.split()
    answer = await session.put_next(emb=now.limits.emb_bytes, kv=now.limits.kv_bytes)
    must(answer.status == SplitStatus.APPLIED, f"answered {answer.status.value}: {answer.reason}")
    must(answer.split.revision == now.revision + 1, f"revision {answer.split.revision} after asking for {now.revision + 1}")
    must((await session.split()).revision == now.revision + 1, "observe does not show the revision just applied")


async def split_repetition_gives_the_same_answer(session: Session) -> None:
    """The same revision and value again changes nothing."""
    now = await session.split()
    emb, kv = now.limits.emb_bytes, now.limits.kv_bytes
    first = await session.put(revision=now.revision + 1, emb=emb, kv=kv)
    again = await session.put(revision=now.revision + 1, emb=emb, kv=kv)
    must(first.status == again.status == SplitStatus.APPLIED, f"{first.status.value}, then {again.status.value}")
    must(again.split.revision == now.revision + 1, "a repetition moved the revision")


async def split_other_value_of_a_revision_is_conflict(session: Session) -> None:
    """The revision in force with another value is somebody else's: conflict, nothing changes."""
    now = await session.split()
    granule = (await session.client.describe()).granule_bytes
    emb, kv = now.limits.emb_bytes, now.limits.kv_bytes
    emb, kv = (emb - granule, kv) if emb >= granule else (emb, kv - granule)
    answer = await session.put(revision=now.revision, emb=emb, kv=kv)
    refused(answer, now, SplitStatus.CONFLICT)


async def split_older_revision_is_stale(session: Session) -> None:
    """A revision below the one in force is stale, whatever it says."""
    await split_successor_is_applied(session)
    now = await session.split()
    answer = await session.put(revision=now.revision - 1, emb=now.limits.emb_bytes, kv=now.limits.kv_bytes)
    refused(answer, now, SplitStatus.STALE)


async def split_gap_is_conflict(session: Session) -> None:
    """A revision that leaves one out was minted by a caller with another history: conflict."""
    now = await session.split()
    answer = await session.put(revision=now.revision + 2, emb=now.limits.emb_bytes, kv=now.limits.kv_bytes)
    refused(answer, now, SplitStatus.CONFLICT)


async def split_above_the_pool_is_refused(session: Session) -> None:
    """Limits that do not fit the pool are refused, with the reason."""
    now, described = await session.split(), await session.client.describe()
    answer = await session.put_next(emb=described.pool_bytes, kv=1)
    refused(answer, now, SplitStatus.CONFLICT, SplitStatus.UNSUPPORTED)


async def split_for_another_process_is_conflict(session: Session) -> None:
    """A change meant for another startId must not touch this process."""
    now = await session.split()
    answer = await session.put(
        revision=now.revision + 1, emb=now.limits.emb_bytes, kv=now.limits.kv_bytes, start_id="another-process"
    )
    refused(answer, now, SplitStatus.CONFLICT)
    must(answer.start_id == (await session.client.observe()).start_id, "the answer does not name this process")


async def split_is_adopted_by_a_caller_without_memory(session: Session) -> None:
    """A restarted caller begins with a wrong revision, reads the split in force from the refusal and goes on from there."""
    await split_successor_is_applied(session)
    now = await session.split()
    refusal = await session.put(revision=now.revision + 100, emb=now.limits.emb_bytes, kv=now.limits.kv_bytes)
    must(refusal.status not in ACCEPTED, "a revision out of nowhere was accepted")
    adopted = refusal.split
    answer = await session.put(
        revision=adopted.revision + 1,
        emb=adopted.limits.emb_bytes,
        kv=adopted.limits.kv_bytes,
        start_id=refusal.start_id,
    )
    must(answer.status == SplitStatus.APPLIED, f"the adopted split was answered {answer.status.value}: {answer.reason}")


async def split_moves_without_ever_exceeding_the_pool(session: Session) -> None:
    """Back and forth by granules under load: no observation shows more than the pool."""
    described, start = await session.client.describe(), await session.split()
    step = described.granule_bytes
    for sign in (1, -1, -1, 1):
        now = await session.split()
        emb = min(max(0, now.limits.emb_bytes + sign * step), described.pool_bytes)
        kv = min(described.pool_bytes - emb, max(0, now.limits.kv_bytes - sign * step))
        for who in range(3):
            await session.rank(who)
        after = await session.move(emb=emb, kv=kv)
        must_be_within_pool(after, described)
        must(after.limits.emb_bytes == emb and after.limits.kv_bytes == kv, f"limits {after.limits} after asking {emb}, {kv}")
    await session.move(emb=start.limits.emb_bytes, kv=start.limits.kv_bytes)


async def split_deferred_holds_growth_back(session: Session) -> None:
    """While a shrink waits for memory in use, its limit is in force, the overage is told, and the other side does not grow."""
    described, start = await session.client.describe(), await session.split()
    if described.max_split_change_bytes is not None:
        raise Skipped("the engine bounds changes; a shrink large enough to be deferred cannot be asked for")
    for who in range(8):
        await session.rank(who, tokens=4096)
    total = start.limits.emb_bytes + start.limits.kv_bytes
    answer = await session.put_next(emb=total, kv=0)
    try:
        if answer.status == SplitStatus.APPLIED:
            raise Skipped("the engine could free everything at once")
        must(answer.status == SplitStatus.DEFERRED, f"answered {answer.status.value}: {answer.reason}")
        must(answer.split.overage_bytes > 0, "deferred without overage")
        must(answer.split.limits.kv_bytes == 0, "deferred, but the shrinking side's limit is not in force")
        must(answer.split.limits.emb_bytes <= start.limits.emb_bytes, "the other side grew while the shrink was deferred")
        must_be_within_pool(answer.split, described)
        await session.confirmed(answer)
        again = await session.put(revision=answer.split.revision, emb=total, kv=0)
        must(again.status == SplitStatus.APPLIED, f"after the overage was gone: {again.status.value}")
        must(again.split.limits.emb_bytes == total, "the growth that waited was never made")
    finally:
        await session.move(emb=start.limits.emb_bytes, kv=start.limits.kv_bytes)


async def split_is_fenced_against_a_restart(session: Session) -> None:
    """A new process has a new startId, and refuses a change meant for the old one."""
    if session.restart is None:
        raise Skipped("no way to restart the engine was given")
    before = await session.client.observe()
    await session.restart()
    after = await session.client.observe()
    must(after.start_id != before.start_id, "the startId did not change over a restart")
    answer = await session.put(
        revision=after.split.revision + 1,
        emb=after.split.limits.emb_bytes,
        kv=after.split.limits.kv_bytes,
        start_id=before.start_id,
    )
    refused(answer, after.split, SplitStatus.CONFLICT)


def refused(answer: SplitAnswer, before: SplitState, *statuses: SplitStatus) -> None:
    """The answer has one of the statuses, says why, and carries an unchanged split."""
    names = " or ".join(status.value for status in statuses)
    must(answer.status in statuses, f"answered {answer.status.value}, expected {names}")
    must(bool(answer.reason), f"{answer.status.value} without a reason")
    must(answer.split.revision == before.revision, "a refused change moved the revision")
    must(answer.split.limits == before.limits, "a refused change moved a limit")


CHECKS = (
    split_successor_is_applied,
    split_repetition_gives_the_same_answer,
    split_other_value_of_a_revision_is_conflict,
    split_older_revision_is_stale,
    split_gap_is_conflict,
    split_above_the_pool_is_refused,
    split_for_another_process_is_conflict,
    split_is_adopted_by_a_caller_without_memory,
    split_moves_without_ever_exceeding_the_pool,
    split_deferred_holds_growth_back,
    split_is_fenced_against_a_restart,
)
