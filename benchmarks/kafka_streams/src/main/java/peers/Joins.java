package peers;

import java.nio.ByteBuffer;
import java.time.Duration;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.state.KeyValueStore;

/** Joins the input with another topic by key, and sends both values, one behind the other. */
final class Joins {
    // What benchmarks/peers/apps/joins.py has.
    private static final Duration WITHIN = Duration.ofMinutes(1);
    private static final Duration GRACE = Duration.ofSeconds(10);

    private Joins() {}

    static Topology topology(Options options) {
        Serde<byte[]> bytes = Serdes.ByteArray();
        StreamsBuilder builder = new StreamsBuilder();
        KStream<byte[], byte[]> left = builder.stream(options.get("input"), Consumed.with(bytes, bytes));
        KStream<byte[], byte[]> joined;
        if ("stream_join".equals(options.get("mode"))) {
            KStream<byte[], byte[]> right = builder.stream(options.get("other"), Consumed.with(bytes, bytes));
            joined = left.join(
                right,
                Joins::both,
                JoinWindows.ofTimeDifferenceAndGrace(WITHIN, GRACE),
                StreamJoined.with(bytes, bytes, bytes).withName(Main.STORE).withStoreName(Main.STORE));
        } else {
            Materialized<byte[], byte[], KeyValueStore<Bytes, byte[]>> store =
                Materialized.<byte[], byte[], KeyValueStore<Bytes, byte[]>>as(Main.STORE)
                    .withKeySerde(bytes)
                    .withValueSerde(bytes);
            KTable<byte[], byte[]> table = builder.table(
                options.get("other"),
                Consumed.with(bytes, bytes),
                options.isOn("caching") ? store.withCachingEnabled() : store.withCachingDisabled());
            joined = left.join(table, Joins::both, Joined.with(bytes, bytes, bytes));
        }
        joined.to(options.get("output"), Produced.with(bytes, bytes));
        return builder.build();
    }

    private static byte[] both(byte[] left, byte[] right) {
        return ByteBuffer.allocate(left.length + right.length).put(left).put(right).array();
    }
}
