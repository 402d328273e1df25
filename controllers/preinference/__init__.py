"""The pre-inference loop: slots that an instance offers for prefixes, the memory for them, and the number of instances."""
