"""IP addresses of instances as gateways and pickers hand them on: each is written as the system writes it.

HAProxy and Envoy answer with addresses in that form, so what is held against an answer has to be in it too: another spelling of
one address would look like a move, for ever. An IPv4 address inside an IPv6 one is given as what it is, as Envoy does not reach
the other.
"""

from __future__ import annotations

import ipaddress
import socket


def ip_of(host: str) -> str:
    """Return an IP address as the system writes it.

    Raises
    ------
    ValueError
        When it is none, or one with a zone: that has a meaning on one machine only, and neither HAProxy nor Envoy takes it.
    """
    ip = ipaddress.ip_address(host)
    if ip.version == 4:
        return str(ip)
    if ip.scope_id is not None:
        raise ValueError("its address has a zone, which means nothing to others")
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return socket.inet_ntop(socket.AF_INET6, ip.packed)


def is_ip(host: str) -> bool:
    """Whether a host is an address rather than a name, also one that `ip_of` refuses."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
