"""Routings to compare in virtual time: random, least loaded, hash with a bound, and the joint score, whole or by one term."""
