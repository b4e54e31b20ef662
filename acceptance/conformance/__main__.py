"""`python -m acceptance.conformance`."""

import sys

from acceptance.conformance.run import main

sys.exit(main())
