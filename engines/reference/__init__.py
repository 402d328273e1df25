"""The reference engine: `simulator.core` behind the engine contract, without an accelerator and saying so."""
