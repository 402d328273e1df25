"""An accelerator profile drives an emulated instance without a change to the core."""

import pytest

from contract.engine import RankRequest
from simulator.core.config import InstanceConfig
from simulator.core.instance import GRInstanceCore
from simulator.core.physics import L20_HSTU
from simulator.physics.accelerator import known_accelerators, load_accelerator
from simulator.physics.model_shape import GATED_DELTANET, HSTU_PUBLISHED, QWEN3_1_7B
from simulator.physics.profiled import profiled_service
from simulator.physics.service import Work


def request(number: int, tokens: int) -> RankRequest:
    return RankRequest(
        request_id=f"request-{number}", user_key="ab" * 16, model_version="1", history_tokens=tokens, candidates=256
    )


@pytest.mark.parametrize("name", known_accelerators())
def test_an_instance_of_each_profile_serves_and_gains_from_its_cache(name: str) -> None:
    service = profiled_service(load_accelerator(name), HSTU_PUBLISHED)
    core = GRInstanceCore(InstanceConfig(service=service), seed=1)
    cold, warm = core.rank(request(1, 4000), 0.0), core.rank(request(2, 4100), 1e6)
    assert warm.kv_tokens_hit == 4000
    assert warm.service_ms < cold.service_ms
    alone = service.law.compute_ms([Work(history_tokens=4000, candidate_tokens=256)])
    assert cold.service_ms == pytest.approx(alone + service.gather_ms(missed_rows=cold.emb_rows_missed))


def test_a_slow_down_stretches_compute_and_link_alike() -> None:
    fast, slow = (profiled_service(load_accelerator("a100"), HSTU_PUBLISHED, slow_down=factor) for factor in (1, 20))
    assert slow.compute_ms(history=1000, candidates=10, cached=0) == 20 * fast.compute_ms(history=1000, candidates=10, cached=0)
    assert slow.gather_ms(missed_rows=5000) == pytest.approx(20 * fast.gather_ms(missed_rows=5000))
    assert slow.kv_bytes_per_token == fast.kv_bytes_per_token == L20_HSTU.kv_bytes_per_token


def test_both_laws_count_the_same_operations() -> None:
    profiled = profiled_service(load_accelerator("l20"), HSTU_PUBLISHED)
    for cached in (0, 1000, 4096):
        counted = profiled.flops(history=4096, candidates=256, cached=cached)
        assert counted == pytest.approx(L20_HSTU.flops(history=4096, candidates=256, cached=cached))


def test_a_decoder_works_and_linear_attention_is_refused() -> None:
    assert profiled_service(load_accelerator("h100"), QWEN3_1_7B).kv_bytes_per_token == 112 * 1024
    with pytest.raises(ValueError, match="linear attention"):
        profiled_service(load_accelerator("h100"), GATED_DELTANET)
    with pytest.raises(ValueError, match="slow_down"):
        profiled_service(load_accelerator("h100"), HSTU_PUBLISHED, slow_down=0)
