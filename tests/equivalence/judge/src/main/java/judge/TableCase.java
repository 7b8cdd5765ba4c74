package judge;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.time.Duration;
import java.util.Set;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.Stores;

/**
 * A join with tables: {@code kind} "stream-table" (input 0 is the stream, 1 the table) or "table-table", {@code how}
 * "inner", "left" or "outer", {@code history} of versioned tables in milliseconds, 0 for tables without versions.
 *
 * <p>An output is {@code [key, "left,right" or null, timestamp]}.
 */
final class TableCase {
    private static final Set<String> KINDS = Set.of("stream-table", "table-table");
    private static final ValueJoiner<Long, Long, String> JOINER = (left, right) -> left + "," + right;

    private TableCase() {}

    static boolean knows(JsonNode asked) {
        return KINDS.contains(asked.get("kind").asText());
    }

    /** Add the case's topology, whose results go to the last of {@code outputs}, and return the number of inputs. */
    static int build(JsonNode asked, StreamsBuilder builder, ArrayNode outputs) {
        boolean isStream = "stream-table".equals(asked.get("kind").asText());
        String how = asked.get("how").asText();
        KStream<String, String> results = isStream
            ? streamJoined(asked, how, builder)
            : joined(how, table(asked, builder, 0), table(asked, builder, 1)).toStream();
        results.process(() -> new Collect(outputs));
        return 2;
    }

    private static KStream<String, String> streamJoined(JsonNode asked, String how, StreamsBuilder builder) {
        KStream<String, Long> stream = builder.stream("in-0", Consumed.with(Serdes.String(), Serdes.Long()));
        KTable<String, Long> table = table(asked, builder, 1);
        Joined<String, Long, Long> with = Joined.with(Serdes.String(), Serdes.Long(), Serdes.Long());
        return "left".equals(how) ? stream.leftJoin(table, JOINER, with) : stream.join(table, JOINER, with);
    }

    private static KTable<String, String> joined(String how, KTable<String, Long> left, KTable<String, Long> right) {
        return switch (how) {
            case "inner" -> left.join(right, JOINER);
            case "left" -> left.leftJoin(right, JOINER);
            case "outer" -> left.outerJoin(right, JOINER);
            default -> throw new IllegalArgumentException("how " + how);
        };
    }

    private static KTable<String, Long> table(JsonNode asked, StreamsBuilder builder, int input) {
        Consumed<String, Long> consumed = Consumed.with(Serdes.String(), Serdes.Long());
        String name = "table-" + input;
        long history = asked.get("history").asLong();
        if (history == 0) {
            return builder.table("in-" + input, consumed, Materialized.as(name));
        }
        return builder.table(
            "in-" + input,
            consumed,
            Materialized.as(Stores.persistentVersionedKeyValueStore(name, Duration.ofMillis(history))));
    }

    private record Collect(ArrayNode outputs) implements Processor<String, String, Void, Void> {
        @Override
        public void process(Record<String, String> record) {
            ArrayNode output = ((ArrayNode) outputs.get(outputs.size() - 1)).addArray();
            output.add(record.key()).add(record.value()).add(record.timestamp());
        }
    }
}
