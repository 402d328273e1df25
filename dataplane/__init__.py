"""What runs beside the engines and in front of them: the agent that moves one instance's split, and the gateways."""
