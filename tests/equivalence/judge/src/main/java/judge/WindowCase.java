package judge;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.time.Duration;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindowedKStream;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * A windowed aggregation: {@code kind} tumbling, hopping, sliding or session, {@code size} (of sliding windows the
 * difference, of sessions the gap), {@code advance}, {@code grace}, {@code retention}, all in milliseconds;
 * {@code emit} "updates", "final" or "suppressed" until {@code every}; {@code aggregate}, see {@link Aggregation}.
 *
 * <p>An output is {@code [key, window start, window end, value, timestamp]}.
 */
final class WindowCase {
    private static final String STORE = "windows";

    private WindowCase() {}

    /** Add the case's topology, whose results go to the last of {@code outputs}, and return the number of inputs. */
    static int build(JsonNode asked, StreamsBuilder builder, ArrayNode outputs) {
        wire(asked, builder, outputs, Aggregation.of(asked.get("aggregate").asText()));
        return 1;
    }

    private static <A> void wire(
            JsonNode asked, StreamsBuilder builder, ArrayNode outputs, Aggregation<A> aggregation) {
        KGroupedStream<String, Long> records =
            builder.stream("in-0", Consumed.with(Serdes.String(), Serdes.Long())).groupByKey();
        KTable<Windowed<String>, A> table = "session".equals(asked.get("kind").asText())
            ? sessions(asked, records, aggregation)
            : windows(asked, records, aggregation);
        if ("suppressed".equals(asked.get("emit").asText())) {
            table = table.suppress(Suppressed.untilTimeLimit(span(asked, "every"), BufferConfig.unbounded()));
        }
        table.toStream().process(() -> new Collect<>(outputs, aggregation));
    }

    private static <A> KTable<Windowed<String>, A> sessions(
            JsonNode asked, KGroupedStream<String, Long> records, Aggregation<A> aggregation) {
        Materialized<String, A, SessionStore<Bytes, byte[]>> store =
            Materialized.<String, A, SessionStore<Bytes, byte[]>>as(STORE)
                .withKeySerde(Serdes.String())
                .withValueSerde(aggregation.serde())
                .withRetention(span(asked, "retention"));
        return records
            .windowedBy(SessionWindows.ofInactivityGapAndGrace(span(asked, "size"), span(asked, "grace")))
            .emitStrategy(strategy(asked))
            .aggregate(aggregation.initial(), aggregation.add(), aggregation.merge(), store);
    }

    private static <A> KTable<Windowed<String>, A> windows(
            JsonNode asked, KGroupedStream<String, Long> records, Aggregation<A> aggregation) {
        Duration size = span(asked, "size");
        Duration grace = span(asked, "grace");
        TimeWindowedKStream<String, Long> windowed = switch (asked.get("kind").asText()) {
            case "tumbling" -> records.windowedBy(TimeWindows.ofSizeAndGrace(size, grace));
            case "hopping" ->
                records.windowedBy(TimeWindows.ofSizeAndGrace(size, grace).advanceBy(span(asked, "advance")));
            case "sliding" -> records.windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(size, grace));
            default -> throw new IllegalArgumentException("kind " + asked.get("kind"));
        };
        Materialized<String, A, WindowStore<Bytes, byte[]>> store =
            Materialized.<String, A, WindowStore<Bytes, byte[]>>as(STORE)
                .withKeySerde(Serdes.String())
                .withValueSerde(aggregation.serde())
                .withRetention(span(asked, "retention"));
        return windowed.emitStrategy(strategy(asked)).aggregate(aggregation.initial(), aggregation.add(), store);
    }

    private static EmitStrategy strategy(JsonNode asked) {
        return "final".equals(asked.get("emit").asText())
            ? EmitStrategy.onWindowClose()
            : EmitStrategy.onWindowUpdate();
    }

    private static Duration span(JsonNode asked, String name) {
        return Duration.ofMillis(asked.get(name).asLong());
    }

    private record Collect<A>(ArrayNode outputs, Aggregation<A> aggregation)
            implements Processor<Windowed<String>, A, Void, Void> {
        @Override
        public void process(Record<Windowed<String>, A> record) {
            ArrayNode output = ((ArrayNode) outputs.get(outputs.size() - 1)).addArray();
            output.add(record.key().key());
            output.add(record.key().window().start()).add(record.key().window().end());
            if (record.value() == null) {
                output.addNull();
            } else {
                aggregation.show().accept(output, record.value());
            }
            output.add(record.timestamp());
        }
    }
}
