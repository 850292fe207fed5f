"""``python -m einops_fast``: see :mod:`einops_fast.cli`."""

from einops_fast.cli import main

raise SystemExit(main())
