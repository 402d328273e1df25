"""The allocation loop: turns policies into intents, hands them to the agents signed, and reports the split that came of it."""
