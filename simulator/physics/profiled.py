"""An accelerator profile as the service model of an emulated instance (`simulator.core.InstanceConfig.service`).

`simulator.core` asks for one request at a time and adds the gather of missed rows itself; here that compute time comes from the
service law with its floors. A slow-down stretches compute and link alike, so that one Python core keeps up with many instances.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.core.physics import ServiceModel
from simulator.physics.accelerator import AcceleratorProfile
from simulator.physics.model_shape import ModelShape
from simulator.physics.service import ServiceLaw, Work


@dataclass(frozen=True, kw_only=True)
class ProfiledService(ServiceModel):
    """A service model whose compute is a `ServiceLaw`; make it with `profiled_service`."""

    law: ServiceLaw
    slow_down: float

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token, as the model's shape has them."""
        return self.law.shape.kv_bytes_per_token

    def flops(self, *, history: int, candidates: int, cached: int) -> float:
        """Return the operations of one request."""
        return self.law.flops([Work(history_tokens=history, cached_tokens=cached, candidate_tokens=candidates)]).total

    def compute_ms(self, *, history: int, candidates: int, cached: int, batch: int = 1) -> float:
        """Return milliseconds of compute for `batch` equal requests, floors included; 0 when nothing has to be computed."""
        work = Work(history_tokens=history, cached_tokens=cached, candidate_tokens=candidates)
        return self.slow_down * self.law.compute_ms([work] * batch)

    def batch_ms(self, works: Sequence[Work], *, padded_tokens: int | None = None) -> float:
        """Return milliseconds of compute for requests that run together; 0 when nothing of them has to be computed."""
        return self.slow_down * self.law.compute_ms(works, padded_tokens=padded_tokens)


def profiled_service(
    accelerator: AcceleratorProfile, shape: ModelShape, *, row_bytes: int = 512, slow_down: int = 1
) -> ProfiledService:
    """Make a service model of an accelerator and a model.

    Parameters
    ----------
    accelerator : AcceleratorProfile
    shape : ModelShape
    row_bytes : int
        Bytes of one embedding row.
    slow_down : int
        How many times slower than the device, in compute and link.

    Raises
    ------
    ValueError
        For linear attention (the emulated KV cache counts tokens, not states), or sizes below 1.
    """
    if not shape.kv_bytes_per_token:
        raise ValueError("shape: linear attention keeps one state a user; the emulated KV cache counts tokens")
    if row_bytes < 1 or slow_down < 1:
        raise ValueError(f"row_bytes: {row_bytes}, slow_down: {slow_down} must be at least 1")
    law = ServiceLaw(accelerator=accelerator, shape=shape)
    return ProfiledService(
        layers=shape.layers,
        width=shape.width,
        flops_per_second=accelerator.flops_per_second / slow_down,
        row_bytes=row_bytes,
        link_bytes_per_second=accelerator.to_device_bytes_per_second // slow_down,
        gather_efficiency=accelerator.gather_link_share,
        gather_fixed_ms=accelerator.gather_fixed_ms * slow_down,
        base_ms=law.launch_ms * slow_down,
        to_host_bytes_per_second=accelerator.to_host_bytes_per_second // slow_down,
        duplex_to_device_share=accelerator.duplex_to_device_share,
        duplex_to_host_share=accelerator.duplex_to_host_share,
        law=law,
        slow_down=float(slow_down),
    )
