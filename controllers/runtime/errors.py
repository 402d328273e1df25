"""What can go wrong in a reconcile, in three classes that decide what happens next.

Transient: the same work may succeed later, so back off. Conflict: the world moved, so read again and decide anew.
Terminal: repeating cannot help, so wait for somebody to change something. Each carries a CamelCase reason that a
condition can show and a message without headers or secrets. ClusterMismatch is the Terminal that heals without a word: roles and
kinds change in objects that nobody here watches, so the controller looks again at a slow pace.
"""

from __future__ import annotations


class ReconcileError(Exception):
    """Base of the three classes.

    Parameters
    ----------
    reason
        CamelCase word for conditions, Events and metrics.
    message
        What happened and, where it is known, what to do.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class Transient(ReconcileError):
    """Try again later; ``retry_after`` is what the server asked for, in seconds."""

    def __init__(self, reason: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(reason, message)
        self.retry_after = retry_after


class NotLeader(Transient):
    """A write was about to leave a process that may no longer be the leader."""

    def __init__(self, message: str = "this process does not hold the Lease") -> None:
        super().__init__("NotLeader", message)


class Conflict(ReconcileError):
    """The object is not what the caller had read: changed, re-created or gone."""


class AlreadyExists(Conflict):
    """A create met an object of the same name."""


class Gone(Conflict):
    """The object to write to does not exist (any more), or its namespace is being deleted."""


class Expired(Conflict):
    """A list continuation or a resource version is too old (HTTP 410)."""


class FieldManagerConflict(Conflict):
    """An unforced apply met fields that another manager owns; ``fields`` names them."""

    def __init__(self, message: str, fields: tuple[str, ...]) -> None:
        super().__init__("FieldManagerConflict", message)
        self.fields = fields


class Terminal(ReconcileError):
    """Retrying the same call cannot succeed."""


class ClusterMismatch(Terminal):
    """The cluster has to change, not the object: roles or CRDs, or an API server that has only just started and does not know
    them yet."""


class Forbidden(ClusterMismatch):
    """RBAC does not grant the verb."""


class KindMissing(ClusterMismatch):
    """The API server does not serve the resource: its CustomResourceDefinition is not installed."""


class SchemaMismatch(ClusterMismatch):
    """The server's schema does not have a field we apply: CRDs and operator are of different versions."""
