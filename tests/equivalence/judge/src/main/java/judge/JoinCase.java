package judge;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.time.Duration;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.Record;

/**
 * A join of two streams: {@code kind} join-inner, join-left or join-outer; {@code before}, {@code after} and
 * {@code grace} in milliseconds.
 *
 * <p>An output is {@code [key, left value, right value, timestamp]}.
 */
final class JoinCase {
    private JoinCase() {}

    /** Add the case's topology, whose results go to the last of {@code outputs}, and return the number of inputs. */
    static int build(JsonNode asked, StreamsBuilder builder, ArrayNode outputs) {
        KStream<String, Long> left = builder.stream("in-0", Consumed.with(Serdes.String(), Serdes.Long()));
        KStream<String, Long> right = builder.stream("in-1", Consumed.with(Serdes.String(), Serdes.Long()));
        JoinWindows windows = JoinWindows.ofTimeDifferenceAndGrace(span(asked, "after"), span(asked, "grace"))
            .before(span(asked, "before"));
        StreamJoined<String, Long, Long> serdes =
            StreamJoined.with(Serdes.String(), Serdes.Long(), Serdes.Long());
        ValueJoiner<Long, Long, Pair> pair = Pair::new;
        KStream<String, Pair> joined = switch (asked.get("kind").asText()) {
            case "join-inner" -> left.join(right, pair, windows, serdes);
            case "join-left" -> left.leftJoin(right, pair, windows, serdes);
            case "join-outer" -> left.outerJoin(right, pair, windows, serdes);
            default -> throw new IllegalArgumentException("kind " + asked.get("kind"));
        };
        joined.process(() -> new Collect(outputs));
        return 2;
    }

    private static Duration span(JsonNode asked, String name) {
        return Duration.ofMillis(asked.get(name).asLong());
    }

    private record Pair(Long left, Long right) {}

    private record Collect(ArrayNode outputs) implements Processor<String, Pair, Void, Void> {
        @Override
        public void process(Record<String, Pair> record) {
            ArrayNode output = ((ArrayNode) outputs.get(outputs.size() - 1)).addArray();
            output.add(record.key()).add(record.value().left()).add(record.value().right()).add(record.timestamp());
        }
    }
}
