package judge;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.serialization.LongSerializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;

/**
 * Answers what Kafka Streams does with a case: one line of JSON in, one line of JSON out.
 *
 * <p>A case has {@code kind}, what the kind needs (see {@link WindowCase}, {@link JoinCase}, {@link TableCase}),
 * {@code store} ("memory" or "rocksdb") and {@code records}, a list of {@code [key, value, timestamp_ms]} or
 * {@code [key, value, timestamp_ms, input]}. The answer is a list with the outputs of each record, or an object with
 * {@code error}.
 */
public final class Judge {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Judge() {}

    public static void main(String[] args) throws IOException {
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader cases = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = cases.readLine(); line != null; line = cases.readLine()) {
            answers.println(answer(line, args[0]));
            answers.flush();
        }
        System.exit(0);
    }

    private static String answer(String line, String stateDir) throws IOException {
        try {
            return JSON.writeValueAsString(judge(JSON.readTree(line), stateDir));
        } catch (RuntimeException error) {
            return JSON.writeValueAsString(JSON.createObjectNode().put("error", error.toString()));
        }
    }

    private static JsonNode judge(JsonNode asked, String stateDir) {
        ArrayNode outputs = JSON.createArrayNode();
        StreamsBuilder builder = new StreamsBuilder();
        int inputs = TableCase.knows(asked)
            ? TableCase.build(asked, builder, outputs)
            : asked.get("kind").asText().startsWith("join-")
            ? JoinCase.build(asked, builder, outputs)
            : WindowCase.build(asked, builder, outputs);
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), config(asked, stateDir), Instant.EPOCH)) {
            List<TestInputTopic<String, Long>> topics = new ArrayList<>();
            for (int input = 0; input < inputs; input++) {
                topics.add(driver.createInputTopic("in-" + input, new StringSerializer(), new LongSerializer()));
            }
            for (JsonNode record : asked.get("records")) {
                outputs.addArray();
                String key = record.get(0).isNull() ? null : record.get(0).asText();
                Long value = record.get(1).isNull() ? null : record.get(1).asLong();
                topics.get(record.path(3).asInt(0)).pipeInput(key, value, record.get(2).asLong());
            }
        }
        return outputs;
    }

    private static Properties config(JsonNode asked, String stateDir) {
        Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, "judge");
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "127.0.0.1:1");
        config.put(StreamsConfig.STATE_DIR_CONFIG, stateDir);
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0L);
        // Closed windows would be looked for once in a second of the driver's clock, which stands still.
        config.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_WINDOWED_AGGREGATION, 0L);
        config.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_OUTER_JOIN_SPURIOUS_RESULTS_FIX, 0L);
        if ("memory".equals(asked.path("store").asText("memory"))) {
            config.put(
                StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG,
                BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers.class);
        }
        return config;
    }
}
