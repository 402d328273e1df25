"""A real Kubernetes control plane on this machine, from pinned sources, without root and without containers.

Start with :class:`testbed.control_plane.ControlPlane`; tests take the fixtures of :mod:`testbed.pytest_plugin`.
"""
