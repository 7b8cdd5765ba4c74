package peers;

import java.time.Duration;
import java.util.Map;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/** Counts records by key and window, and sends each count that changed. */
final class Windows {
    // What benchmarks/peers/apps/windows.py has.
    private static final Duration GRACE = Duration.ofSeconds(10);
    private static final Duration RETENTION = Duration.ofHours(1);
    private static final Duration SIZE = Duration.ofMinutes(1);
    private static final Duration ADVANCE = Duration.ofSeconds(10);
    private static final Duration GAP = Duration.ofSeconds(30);

    private Windows() {}

    static Topology topology(Options options) {
        StreamsBuilder builder = new StreamsBuilder();
        KGroupedStream<byte[], byte[]> records = builder
            .stream(options.get("input"), Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
            .groupByKey();
        if ("session".equals(options.get("mode"))) {
            sessions(records, options);
        } else {
            windows(records, options);
        }
        return builder.build();
    }

    private static void windows(KGroupedStream<byte[], byte[]> records, Options options) {
        TimeWindows tumbling = TimeWindows.ofSizeAndGrace(SIZE, GRACE);
        TimeWindows kind = "hopping".equals(options.get("mode")) ? tumbling.advanceBy(ADVANCE) : tumbling;
        records.windowedBy(kind)
            .count(Windows.<WindowStore<Bytes, byte[]>>store(options))
            .toStream()
            .to(options.get("output"),
                Produced.with(WindowedSerdes.timeWindowedSerdeFrom(byte[].class, SIZE.toMillis()), Serdes.Long()));
    }

    private static void sessions(KGroupedStream<byte[], byte[]> records, Options options) {
        records.windowedBy(SessionWindows.ofInactivityGapAndGrace(GAP, GRACE))
            .count(Windows.<SessionStore<Bytes, byte[]>>store(options))
            .toStream()
            // A session that another one takes the place of comes as null, which ours doesn't send.
            .filter((session, count) -> count != null)
            .to(options.get("output"),
                Produced.with(WindowedSerdes.sessionWindowedSerdeFrom(byte[].class), Serdes.Long()));
    }

    private static <S extends StateStore> Materialized<byte[], Long, S> store(Options options) {
        Materialized<byte[], Long, S> store = Materialized.<byte[], Long, S>as(Main.STORE)
            .withKeySerde(Serdes.ByteArray())
            .withValueSerde(Serdes.Long())
            .withRetention(RETENTION)
            .withLoggingEnabled(Map.of());
        return options.isOn("caching") ? store.withCachingEnabled() : store.withCachingDisabled();
    }
}
