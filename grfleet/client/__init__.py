"""Router client library: which instance holds a user's state, without a hop and without asking anybody per request.

`Client` (threads) and `AsyncClient` (asyncio) take raw user ids, hash them at the door, follow the published table and send
requests with one retry or one hedge. Below them, `Router` answers `pick` from the last table in memory, and `follow` or
`keep_current` renew that table. With the operator or the API server gone, picks go on from the last table, for as long as it
takes.
"""

from contract.table_sources.kubernetes_api import KubernetesSource
from contract.table_sources.sources import FileSource, HttpSource, Sighting, Source
from contract.view import Pick
from grfleet.client.asynchronous import AsyncClient
from grfleet.client.blocking import Client
from grfleet.client.errors import AllFailed, BadUserId, ClientError, InstanceFailed, KeyMismatch, NoInstance
from grfleet.client.exclusion import ExclusionLimits
from grfleet.client.face import Choice
from grfleet.client.follow import follow, keep_current
from grfleet.client.hedge import HedgePolicy
from grfleet.client.hot_users import GatewayOverrides, keep_overrides
from grfleet.client.keys import PoolKey
from grfleet.client.metrics import KeptMetrics, Metric, Metrics
from grfleet.client.router import Router, RouterStatus

__all__ = [
    "AllFailed",
    "AsyncClient",
    "BadUserId",
    "Choice",
    "Client",
    "ClientError",
    "ExclusionLimits",
    "FileSource",
    "GatewayOverrides",
    "HedgePolicy",
    "HttpSource",
    "InstanceFailed",
    "KeptMetrics",
    "KeyMismatch",
    "KubernetesSource",
    "Metric",
    "Metrics",
    "NoInstance",
    "Pick",
    "PoolKey",
    "Router",
    "RouterStatus",
    "Sighting",
    "Source",
    "follow",
    "keep_current",
    "keep_overrides",
]
