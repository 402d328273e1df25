"""Container images without Docker and without a registry: layers as plain tar files, images as docker archives.

:mod:`testbed.images.archive` writes the format, :mod:`testbed.images.layers` fills layers from what runs on this
machine, and :mod:`testbed.images.product` puts grfleet's own images together.
"""
