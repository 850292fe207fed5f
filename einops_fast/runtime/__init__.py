"""Keep plans and settings, and decide when to measure: what a call finds when it comes again."""
