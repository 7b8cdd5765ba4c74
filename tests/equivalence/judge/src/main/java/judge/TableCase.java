package judge;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.time.Duration;
import java.util.Set;
import java.util.function.Function;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Aggregator;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.KeyValueMapper;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.Stores;

/**
 * A join with tables, or an aggregate over one: {@code kind} "stream-table", "global-table" (input 0 is the stream, 1 the table),
 * "table-table", "foreign-key" or "table-aggregate" (of input 0), {@code how} "inner", "left" or "outer", or what an aggregate keeps,
 * "trace", "sum" or "count", {@code history} of versioned tables in milliseconds, 0 for tables without versions.
 *
 * <p>An output is {@code [key, "left,right" or null, timestamp]}, of an aggregate {@code [group, value or null, timestamp]}.
 */
final class TableCase {
    private static final Set<String> KINDS = Set.of(
        "stream-table", "global-table", "table-table", "table-aggregate", "foreign-key");
    private static final ValueJoiner<Long, Long, String> JOINER = (left, right) -> left + "," + right;

    private TableCase() {}

    static boolean knows(JsonNode asked) {
        return KINDS.contains(asked.get("kind").asText());
    }

    /** Add the case's topology, whose results go to the last of {@code outputs}, and return the number of inputs. */
    static int build(JsonNode asked, StreamsBuilder builder, ArrayNode outputs) {
        String how = asked.get("how").asText();
        KStream<String, String> results = switch (asked.get("kind").asText()) {
            case "stream-table" -> streamJoined(asked, how, builder);
            case "global-table" -> globallyJoined(how, builder);
            case "table-aggregate" -> aggregated(how, table(asked, builder, 0)).toStream();
            case "foreign-key" -> joinedByForeignKey(how, table(asked, builder, 0), table(asked, builder, 1)).toStream();
            default -> joined(how, table(asked, builder, 0), table(asked, builder, 1)).toStream();
        };
        results.process(() -> new Collect(outputs));
        return "table-aggregate".equals(asked.get("kind").asText()) ? 1 : 2;
    }

    private static KStream<String, String> streamJoined(JsonNode asked, String how, StreamsBuilder builder) {
        KStream<String, Long> stream = builder.stream("in-0", Consumed.with(Serdes.String(), Serdes.Long()));
        KTable<String, Long> table = table(asked, builder, 1);
        Joined<String, Long, Long> with = Joined.with(Serdes.String(), Serdes.Long(), Serdes.Long());
        return "left".equals(how) ? stream.leftJoin(table, JOINER, with) : stream.join(table, JOINER, with);
    }

    /** The row that a record names is that of its group. */
    private static KStream<String, String> globallyJoined(String how, StreamsBuilder builder) {
        Consumed<String, Long> consumed = Consumed.with(Serdes.String(), Serdes.Long());
        KStream<String, Long> stream = builder.stream("in-0", consumed);
        GlobalKTable<String, Long> table = builder.globalTable("in-1", consumed);
        KeyValueMapper<String, Long, String> named = (key, value) -> value == null ? null : group(value);
        return "left".equals(how) ? stream.leftJoin(table, named, JOINER) : stream.join(table, named, JOINER);
    }

    private static String group(long value) {
        return value % 5 == 4 ? null : Long.toString(value % 5);
    }

    private static KTable<String, String> joined(String how, KTable<String, Long> left, KTable<String, Long> right) {
        return switch (how) {
            case "inner" -> left.join(right, JOINER);
            case "left" -> left.leftJoin(right, JOINER);
            case "outer" -> left.outerJoin(right, JOINER);
            default -> throw new IllegalArgumentException("how " + how);
        };
    }

    /** The foreign key of a left value is that of its group. */
    private static KTable<String, String> joinedByForeignKey(
            String how, KTable<String, Long> left, KTable<String, Long> right) {
        Function<Long, String> on = TableCase::group;
        return "left".equals(how) ? left.leftJoin(right, on, JOINER) : left.join(right, on, JOINER);
    }

    /** The group of a value is its remainder by 5, and 4 stands for no group. */
    private static KTable<String, String> aggregated(String how, KTable<String, Long> table) {
        KGroupedTable<String, Long> grouped = table.groupBy(
            (key, value) -> KeyValue.pair(group(value), value),
            Grouped.with(Serdes.String(), Serdes.Long()));
        return switch (how) {
            case "trace" -> fold(grouped, "", (key, value, held) -> held + "+" + value, (key, value, held) -> held + "-" + value);
            case "sum" -> fold(grouped, "0", (key, value, held) -> plus(held, value), (key, value, held) -> plus(held, -value));
            case "count" -> fold(
                grouped, "0", (key, value, held) -> plus(held, 1), (key, value, held) -> "1".equals(held) ? null : plus(held, -1));
            default -> throw new IllegalArgumentException("how " + how);
        };
    }

    private static KTable<String, String> fold(
            KGroupedTable<String, Long> grouped,
            String initial,
            Aggregator<String, Long, String> add,
            Aggregator<String, Long, String> remove) {
        return grouped.aggregate(() -> initial, add, remove, Materialized.with(Serdes.String(), Serdes.String()));
    }

    private static String plus(String held, long value) {
        return Long.toString(Long.parseLong(held) + value);
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
