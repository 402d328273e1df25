"""`python -m policies.allocation.core` compiles the core in place."""

from policies.allocation.core.build import main

if __name__ == "__main__":
    main()
