"""Record what plans do, and tell it: metrics, profiles, hints, and what wasn't replaced."""
