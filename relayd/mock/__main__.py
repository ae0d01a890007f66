"""`python -m relayd.mock`: the mock without the rest of relayd."""

import sys

from relayd.mock.cli import main

sys.exit(main())
