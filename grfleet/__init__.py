"""The public face of grfleet: the command line, the demo and the router client library."""
