"""Hot users of the picker: the flags of the gateway, the loop of the gateway, and a request that goes where the state is."""

import json
import random
import time
from pathlib import Path

import msgspec
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from contract.agent import PREFIX
from contract.keys import SLOTS, slot_of, user_key
from contract.residency import OVERRIDES_PATH, InstanceLoad, OverrideTable, ResidencyReport, UserState
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots
from dataplane.hot_users.flags import loop_of
from dataplane.http.server import Answer, Handler, Request, Route, serving
from dataplane.picker import main as command
from dataplane.picker.chooser import PickLimits
from dataplane.picker.exchange import Edge
from dataplane.picker.metrics import route_of
from dataplane.picker.picker import Picker

POOL_KEY = b"0123456789abcdef"
USER = next(f"user-{n}" for n in range(99) if slot_of(user_key(POOL_KEY, f"user-{n}")) % 2 == 0)  # its slot is a's


def agent_of(uid: str, users: list[UserState]) -> Route:
    async def answer(request: Request) -> Answer:
        load = InstanceLoad(reachable=True, queue=0, in_flight=1, service_ms=1.0, ms_per_token=0.02)
        report = ResidencyReport(uid=uid, start_id="s", generation=0, since=0, cursor=1, users=users, load=load)
        return Answer(200, msgspec.json.encode(report))

    return lambda method, path: Handler(answer) if path == f"{PREFIX}/residency" else Answer(404, b"{}")


async def test_a_user_goes_where_an_agent_says_that_its_state_is_and_clients_are_told_the_same(tmp_path: Path) -> None:
    picker = Picker(Edge(pool_key=POOL_KEY), limits=PickLimits(), monotonic_s=time.monotonic, rng=random.Random(1))
    rows = [
        TableInstance(name=n, uid=f"u{n}", address=f"10.0.0.{at}:80", weight_percent=100, state=InstanceState.READY)
        for at, n in enumerate("ab", 1)
    ]
    picker.offer(RoutingTable(generation=1, instances=rows, slots=pack_slots([slot % 2 for slot in range(SLOTS)])))
    message = ext_proc.ProcessingRequest(request_headers=ext_proc.HttpHeaders())
    message.request_headers.headers.headers.add(key="x-user-id", raw_value=USER.encode())

    def goes_to() -> str:
        raw = picker.exchange().answer(message.SerializeToString())
        metadata = ext_proc.ProcessingResponse.FromString(raw).dynamic_metadata
        return str(metadata["envoy.lb"]["x-gateway-destination-endpoint"].split(",")[0])

    assert goes_to() == "10.0.0.1:80"
    state = UserState(key=user_key(POOL_KEY, USER), tokens_hbm=3000)
    anywhere = "http://127.0.0.1:0"
    async with serving(agent_of("ua", []), anywhere) as a, serving(agent_of("ub", [state]), anywhere) as b:
        (tmp_path / "agents.json").write_text(json.dumps({"a": a, "b": b}))
        flags = ["--table", "t", "--pool-key", "k", "--agents", str(tmp_path / "agents.json")]
        loop = loop_of(command._parser().parse_args(flags), picker, picker)
        assert loop is not None
        await loop.round()
        assert goes_to() == "10.0.0.2:80"
        told = route_of(picker, loop)("GET", OVERRIDES_PATH)
        assert isinstance(told, Handler)
        answer = await told.answer(Request("GET", OVERRIDES_PATH, "", None))
        assert len(msgspec.json.decode(answer.body, type=OverrideTable).instances) == 1
        await loop.aclose()
    assert loop_of(command._parser().parse_args(flags[:4]), picker, picker) is None
