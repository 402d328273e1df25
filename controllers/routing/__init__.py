"""The routing loop: decides which instance owns which users and publishes that as the pool's GRRoutingTable."""
