"""HTTP/1.1 of the data plane, both sides: costs an agent next to nothing, and is bounded against whoever is at the other end."""
