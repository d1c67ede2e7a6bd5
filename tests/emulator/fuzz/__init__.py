"""Random programs, compiled at several levels, against their own evaluation on the host."""
