"""Hot users of gateways and pickers: agents are asked whose state their engines hold, and users are sent to where theirs is."""
