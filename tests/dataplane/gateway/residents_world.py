"""Agents that answer by hand, for the tests of what residents make of reports; the clock moves by hand too."""

from contract.keys import slot_of
from contract.residency import InstanceLoad, ResidencyReport, UserState
from contract.table import InstanceState, TableInstance
from dataplane.hot_users.residents import Chosen, Residents
from policies.routing.types import Limits

NAMES = ("a", "b", "c")
OWNERS = [slot % len(NAMES) for slot in range(4096)]


def key_of(number: int) -> str:
    return f"{number:032x}"


def home_of(key: str) -> str:
    return f"uid-{NAMES[slot_of(key) % len(NAMES)]}"


def elsewhere(key: str) -> str:
    return next(f"uid-{name}" for name in NAMES if f"uid-{name}" != home_of(key))


def rows(names: tuple[str, ...] = NAMES, *, state: InstanceState = InstanceState.READY) -> list[TableInstance]:
    return [
        TableInstance(name=n, uid=f"uid-{n}", address=f"http://10.0.0.{i + 1}:9000", weight_percent=100, state=state)
        for i, n in enumerate(names)
    ]


class Fleet:
    """Agents that answer by hand, and the residents that hear them."""

    def __init__(self, **limits: object) -> None:
        self.residents = Residents(Limits(**limits))  # type: ignore[arg-type]  # names and types are the test's own
        self.now_ms = 0.0
        self.starts = {f"uid-{name}": "start-1" for name in NAMES}
        self.cursors = dict.fromkeys(self.starts, 1)
        self.residents.follow(rows(), OWNERS)

    def tell(
        self,
        uid: str,
        *states: UserState,
        reachable: bool = True,
        whole: bool | None = None,
        in_flight: int = 1,
        generation: int = 0,
    ) -> bool:
        known = self.residents.cursor_of(uid)
        self.cursors[uid] += 1
        anew = whole if whole is not None else known == 0
        load = InstanceLoad(
            reachable=reachable, queue=0, in_flight=in_flight, service_ms=10.0, ms_per_token=0.02, ms_per_row=0.001
        )
        report = ResidencyReport(
            uid=uid,
            start_id=self.starts[uid],
            generation=generation,
            since=0 if anew else known,
            cursor=self.cursors[uid],
            users=list(states),
            load=load,
        )
        return self.residents.heard(uid, report, now_ms=self.now_ms)

    def all_tell(self) -> None:
        for uid in self.starts:
            self.tell(uid)

    def choose(self, *, seconds: float = 2.0, down: tuple[str, ...] = ()) -> Chosen:
        self.now_ms += 1000.0 * seconds
        return self.residents.choose(now_ms=self.now_ms, down=down)


def state(key: str, tokens: int = 3000) -> UserState:
    return UserState(key=key, tokens_hbm=tokens)


KEY = key_of(7)
AWAY = elsewhere(KEY)
