"""An actor's handlers over recorded input, for the test driver and for `spark_replay`."""
