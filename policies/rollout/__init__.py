"""How a change of strategy or model reaches the instances of a pool: who goes first, what is compared, what follows. Pure."""
