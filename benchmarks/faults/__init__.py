"""The same workload and the same kills for ours, Kafka Streams and Faust: what each loses, doubles and takes."""
