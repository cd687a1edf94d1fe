"""`python -m ppo_lightning`."""

import sys

from ppo_lightning.cli import main

sys.exit(main())
