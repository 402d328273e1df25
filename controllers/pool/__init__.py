"""The pool loop: makes the instances that a GRServingPool asks for and sums up how they are."""
