"""The kernel cache's command line: `rdna-jit-cache`, or `python -m cache_tools`."""
