package peers;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;

/** The programs of benchmarks/backlog/app.py: a left join, or final results of windows. */
final class Backlog {
    private static final Serde<String> TEXT = Serdes.String();
    private static final String BOTH = "3";
    private static final long SAMPLE_MS = 100;

    private Backlog() {}

    static Topology topology(Options options) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> left = input(builder, options, "input", "0");
        KStream<String, String> right = options.get("other").isEmpty() ? null : input(builder, options, "other", "1");
        Duration size = Duration.ofMillis(Long.parseLong(options.get("size-ms")));
        Duration grace = Duration.ofMillis(Long.parseLong(options.get("grace-ms")));
        KStream<String, String> results = "join".equals(options.get("result"))
            ? left.leftJoin(
                right,
                (order, payment) -> payment == null ? "unpaid" : "paid",
                JoinWindows.ofTimeDifferenceAndGrace(size, grace),
                StreamJoined.with(TEXT, TEXT, TEXT).withName(Main.STORE).withStoreName(Main.STORE))
            : windows(right == null ? left : left.merge(right), options, TimeWindows.ofSizeAndGrace(size, grace));
        results.to(options.get("output"), Produced.with(TEXT, TEXT));
        return builder.build();
    }

    private static KStream<String, String> input(StreamsBuilder builder, Options options, String name, String place) {
        KStream<String, String> records = builder.stream(options.get(name), Consumed.with(TEXT, TEXT));
        KStream<String, String> keyed =
            place.equals(options.get("by")) ? records.selectKey((key, value) -> value) : records;
        String side = "0".equals(place) ? "1" : "2";
        return keyed.mapValues(value -> side);
    }

    private static KStream<String, String> windows(KStream<String, String> records, Options options, TimeWindows kind) {
        boolean counts = "count".equals(options.get("result"));
        return records.groupByKey(Grouped.with(TEXT, TEXT))
            .windowedBy(kind)
            .aggregate(
                () -> "0",
                (key, side, before) -> counts
                    ? String.valueOf(Long.parseLong(before) + 1)
                    : String.valueOf(Integer.parseInt(before) | Integer.parseInt(side)),
                Materialized.with(TEXT, TEXT))
            .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()))
            .toStream()
            .filter((window, value) -> counts || BOTH.equals(value))
            .map((window, value) ->
                KeyValue.pair(window.key() + "@" + window.window().start(), counts ? value : "both"));
    }

    /** Writes the number of dropped records to a file again and again; it is a metric of this process only. */
    static void reportDropped(KafkaStreams streams, Path file) {
        Thread thread = new Thread(() -> {
            Path next = file.resolveSibling(file.getFileName() + ".next");
            try {
                while (true) {
                    double dropped = streams.metrics().values().stream()
                        .filter(metric -> "dropped-records-total".equals(metric.metricName().name()))
                        .mapToDouble(metric -> (Double) metric.metricValue())
                        .sum();
                    Files.writeString(next, String.valueOf((long) dropped));
                    Files.move(next, file, java.nio.file.StandardCopyOption.ATOMIC_MOVE);
                    Thread.sleep(SAMPLE_MS);
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        });
        thread.setDaemon(true);
        thread.start();
    }
}
