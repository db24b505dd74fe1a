"""`python -m offramp`."""

import sys

from offramp.cli.main import main

sys.exit(main())
