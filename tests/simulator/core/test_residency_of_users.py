"""Whose state an instance holds, as it tells it: a reader that follows the cursor knows what the caches hold."""

from hypothesis import given, settings
from hypothesis import strategies as st

from contract import engine
from contract.residency import MAX_USERS, ResidencyReport
from simulator.core.config import InstanceConfig
from simulator.core.instance import GRInstanceCore
from simulator.core.residency import ResidencyLog

USERS = 12
PAGE = 32


def user(number: int) -> str:
    return f"{number:032x}"


def small_core(*, users_in_hbm: int = 4, host_users: int = 2, ssd_users: int = 2) -> GRInstanceCore:
    config = InstanceConfig(pool_bytes=1 << 30)
    entry = 2 * PAGE * config.service.kv_bytes_per_token
    sizes = {"host_bytes": host_users * entry, "ssd_bytes": ssd_users * entry}
    pool = 2 * users_in_hbm * entry
    return GRInstanceCore(
        InstanceConfig(pool_bytes=pool, granule_bytes=1 << 16, emb_percent=50, **sizes), seed=1, start_id="first"
    )


class Reader:
    """What a reader of the reports believes."""

    def __init__(self) -> None:
        self.cursor = self.generation = 0
        self.tokens: dict[str, tuple[int, int, int]] = {}

    def read(self, report: ResidencyReport) -> None:
        if report.since != self.cursor or report.generation != self.generation:
            self.tokens.clear()
        self.cursor, self.generation = report.cursor, report.generation
        for state in report.users:
            if state.gone:
                self.tokens.pop(state.key, None)
            else:
                self.tokens[state.key] = (state.tokens_hbm, state.tokens_host, state.tokens_ssd)


def held_by(core: GRInstanceCore) -> dict[str, tuple[int, int, int]]:
    held = {key[0]: core.histories.tokens_of(key) for key in (*core.kv.keys_oldest_first(), *core.lower.users())}
    return {key: tokens for key, tokens in held.items() if any(tokens)}


ranks = st.tuples(st.just("rank"), st.integers(0, USERS - 1), st.integers(PAGE + 1, 2 * PAGE))
reads = st.tuples(st.just("read"), st.just(0), st.just(0))
calls = st.one_of(
    *[ranks] * 6,
    *[reads] * 3,
    st.tuples(st.just("evict"), st.integers(0, USERS - 1), st.just(0)),
    st.tuples(st.just("prefetch"), st.integers(0, USERS - 1), st.just(0)),
    st.tuples(st.just("pre-infer"), st.integers(0, USERS - 1), st.integers(1, 2 * PAGE)),
    st.tuples(st.just("limits"), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("split"), st.integers(1, 9), st.just(0)),
    st.tuples(st.just("empty"), st.just(0), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(calls, min_size=30, max_size=60))
def test_a_reader_of_the_reports_knows_what_the_caches_hold(log: list[tuple[str, int, int]]) -> None:
    core, reader, version, now = small_core(), Reader(), "1", 0.0
    for number, (what, who, size) in enumerate(log):
        now += 1000.0
        match what:
            case "rank":
                core.rank(
                    engine.RankRequest(
                        request_id=f"r{number}", user_key=user(who), model_version=version, history_tokens=size, candidates=1
                    ),
                    now,
                )
            case "pre-infer":
                core.pre_infer(
                    engine.PreInferRequest(
                        request_id=f"r{number}", user_key=user(who), model_version=version, history_tokens=size
                    ),
                    now,
                )
            case "evict":
                core.evict([user(who)])
            case "prefetch":
                core.prefetch([user(who)])
            case "limits":
                limits, entry = core.prefixes.limits, core.kv.bytes_of(2 * PAGE)
                core.put_limits(
                    engine.LimitsRequest(
                        revision=limits.revision + 1,
                        pre_infer_slots=limits.pre_infer_slots,
                        pre_infer_bytes=limits.pre_infer_bytes,
                        host_bytes=who * entry,
                        ssd_bytes=size * entry,
                    )
                )
            case "split":
                kv = core.config.pool_bytes // 10 * who
                core.put_split(
                    engine.SplitRequest(
                        start_id=core.start_id,
                        revision=core.split.revision + 1,
                        emb_bytes=0,
                        kv_bytes=kv,
                        refill_bytes_per_second=0,
                    ),
                    now_ms=now,
                )
            case "empty":
                core.invalidate(engine.InvalidateRequest(everything=True))
            case _:
                reader.read(core.residency(reader.cursor, now_ms=now))
    now += 1e6
    core.advance(now)
    reader.read(core.residency(reader.cursor, now_ms=now))
    assert reader.tokens == held_by(core)


def test_a_report_is_bounded_and_names_the_users_that_were_used_last() -> None:
    log = ResidencyLog(lambda key: (7, 0, 0))
    for number in range(MAX_USERS + 10):
        log.used((user(number), "1"), float(number))
    since, users = log.since(0, now_ms=float(MAX_USERS + 10))
    assert since == 0
    assert len(users) == MAX_USERS
    assert (users[0].key, users[0].age_ms) == (user(MAX_USERS + 9), 1.0)


def test_a_cursor_older_than_what_is_remembered_starts_over() -> None:
    log = ResidencyLog(lambda key: (7, 0, 0), kept=3)
    log.used((user(1), "1"), 0.0)
    early = log.cursor
    for number in range(2, 5):
        log.used((user(number), "1"), 0.0)
    assert log.since(early, now_ms=0.0)[0] == early  # the one that was forgotten is the one that it has
    log.used((user(5), "1"), 0.0)
    assert log.since(early, now_ms=0.0) == (0, log.since(0, now_ms=0.0)[1])
    assert [state.key for state in log.since(0, now_ms=0.0)[1]] == [user(5), user(4), user(3)]


def test_more_changes_than_a_report_holds_start_over() -> None:
    log = ResidencyLog(lambda key: (7, 0, 0))
    log.used((user(0), "1"), 0.0)
    cursor = log.cursor
    for number in range(1, 4):
        log.used((user(number), "1"), 0.0)
    assert [state.key for state in log.since(cursor, now_ms=0.0, most=3)[1]] == [user(3), user(2), user(1)]
    assert log.since(cursor, now_ms=0.0, most=3)[0] == cursor
    since, users = log.since(cursor, now_ms=0.0, most=2)
    assert since == 0
    assert [state.key for state in users] == [user(3), user(2)]


def test_a_state_of_another_model_version_says_nothing_of_the_user() -> None:
    core = small_core()
    for version in ("old", "1"):
        core.rank(
            engine.RankRequest(request_id=version, user_key=user(1), model_version=version, history_tokens=PAGE, candidates=1),
            0.0,
        )
    core.advance(1e6)
    cursor = core.residency(0, now_ms=1e6).cursor
    core.invalidate(engine.InvalidateRequest(model_version="1"))
    report = core.residency(cursor, now_ms=1e6)
    assert report.since == 0
    assert [(state.key, state.tokens_hbm) for state in report.users] == [(user(1), PAGE)]
