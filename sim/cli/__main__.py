"""``python -m privet.sim.cli``."""

from privet.sim.cli.main import main

if __name__ == "__main__":
    main()
