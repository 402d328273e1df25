"""Three tiers under a stream of equal users, unhurried: each tier holds what libcachesim's LRU of its size holds.

Host memory has copies of what HBM has, and SSD takes what host memory gives up. So HBM hits like an LRU cache of its own size,
host memory like one of its size, and host memory with SSD like one of both sizes. (The compiled fleet's host tier holds what HBM
gave up instead, so there the sizes of HBM and host memory add up.)
"""

import numpy as np
import pytest
from other_caches import hits
from real_streams import visits

from simulator.physics.transfer import TransferCost
from simulator.tiers.ssd import SsdCost
from simulator.tiers.store import TieredStore
from simulator.tiers.store_replay import replay_on_store
from simulator.tiers.store_types import StoreConfig
from simulator.tiers.visits import Visits

LINK = TransferCost(
    name="fast",
    to_device_fixed_ms=0.0,
    to_device_bytes_per_second=1 << 40,
    to_host_fixed_ms=0.0,
    to_host_bytes_per_second=1 << 40,
    to_device_duplex_share=1.0,
    to_host_duplex_share=1.0,
)
STATE = 32 * 1024


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize(("hbm", "host", "ssd"), [(50, 200, 500), (100, 400, 0), (10, 100, 2000)])
def test_every_visit_finds_its_state_in_the_tier_where_lru_caches_of_these_sizes_have_it(
    hbm: int, host: int, ssd: int, exclusive: bool
) -> None:
    users = visits().user
    equal = Visits(user=users, state_bytes=np.full(len(users), STATE), time_ms=np.arange(len(users)) * 1e3, users=visits().users)
    config = StoreConfig(
        users=equal.users,
        bytes_per_token=1024,
        hbm_bytes=hbm * STATE,
        dram_bytes=host * STATE,
        ssd_bytes=ssd * STATE,
        link=LINK,
        page_tokens=32,
        chunk_tokens=32,
        host_policy="lru",
        exclusive=exclusive,
        ssd=SsdCost(read_bytes_per_second=1 << 40, write_bytes_per_second=1 << 40, fixed_ms=0.0, write_backlog_bytes=1 << 40),
    )
    found = replay_on_store(TieredStore(config), equal).tokens > 0
    np.testing.assert_array_equal(found[:, 0], hits("LRU", users.tolist(), hbm))
    above = hbm if exclusive else 0  # else the host has HBM's users as well
    np.testing.assert_array_equal(found[:, :2].any(axis=1), hits("LRU", users.tolist(), above + host))
    np.testing.assert_array_equal(found[:, :3].any(axis=1), hits("LRU", users.tolist(), above + host + ssd))
