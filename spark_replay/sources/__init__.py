"""The sources of a topic's committed records: Kafka, an archive, or one after the other.

A `Source` is asked twice. `describe` fixes how far the log reaches now; `records` reads what lies between those
bounds. So one run reads one state of the log, however much is written meanwhile.

    log = spark_replay.kafka(spark, "127.0.0.1:9092", "dispatcher--run-command-state-changelog")
    old = spark_replay.archive(spark, "/data/archive", "dispatcher--run-command-state-changelog")
    both = log.after(old)
"""
