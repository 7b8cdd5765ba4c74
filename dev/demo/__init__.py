"""The main job from end to end, on a real broker with real workers: `python -m dev.demo`, or `make demo`."""
