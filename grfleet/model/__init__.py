"""Allocator models on the command line: check a file, bring it into a cluster, see which ones are verified and run."""
