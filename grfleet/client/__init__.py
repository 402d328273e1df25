"""Router client library: which instance holds a user's state, without a hop and without asking anybody per request.

`Router` keeps the last published table and answers `pick` from memory; `follow` renews the table from the Kubernetes API. With
the operator or the API server gone, picks go on from the last table.
"""

from grfleet.client.follow import follow
from grfleet.client.router import NoInstance, Pick, Router

__all__ = ["NoInstance", "Pick", "Router", "follow"]
