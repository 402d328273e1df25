"""The models loop: verifies the bytes of every AllocatorModel and says who runs it."""
