"""Test vectors shared by every implementation of the contract, and what writes them."""
