"""Which instance owns which users: weighted rendezvous over 4096 slots, and tables that change by budget."""
