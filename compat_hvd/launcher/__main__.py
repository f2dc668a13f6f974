"""``python -m compat_hvd.launcher`` is ``compat-hvdrun``."""

import sys

from compat_hvd.launcher import main

sys.exit(main())
