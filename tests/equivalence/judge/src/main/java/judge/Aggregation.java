package judge;

import com.fasterxml.jackson.databind.node.ArrayNode;
import java.util.function.BiConsumer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.kstream.Aggregator;
import org.apache.kafka.streams.kstream.Initializer;
import org.apache.kafka.streams.kstream.Merger;

/**
 * How values become a window's value.
 *
 * @param <A> the window's value
 */
record Aggregation<A>(
        Initializer<A> initial,
        Aggregator<String, Long, A> add,
        Merger<String, A> merge,
        Serde<A> serde,
        BiConsumer<ArrayNode, A> show) {

    /** A null value counts, adds nothing to a sum, and is collected as "null". */
    static Aggregation<?> of(String name) {
        return switch (name) {
            case "count" -> numbers((key, value, held) -> held + 1);
            case "sum" -> numbers((key, value, held) -> value == null ? held : held + value);
            case "collect" -> new Aggregation<>(
                () -> "",
                (key, value, held) -> held + " " + value,
                (key, one, two) -> one + two,
                Serdes.String(),
                ArrayNode::add);
            default -> throw new IllegalArgumentException("aggregate " + name + ": collect, count or sum");
        };
    }

    private static Aggregation<Long> numbers(Aggregator<String, Long, Long> add) {
        return new Aggregation<>(() -> 0L, add, (key, one, two) -> one + two, Serdes.Long(), ArrayNode::add);
    }
}
