"""`grfleet trace`: check an event log, convert it into a file of requests, or generate one."""
