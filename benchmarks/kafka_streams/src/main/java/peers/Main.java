package peers;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.function.BiFunction;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/** One Kafka Streams worker; what it runs is said by {@code --mode}. */
public final class Main {
    static final String STORE = "state";

    private Main() {}

    public static void main(String[] args) throws InterruptedException {
        Options options = new Options(args);
        KafkaStreams streams = new KafkaStreams(topology(options), config(options));
        CountDownLatch ended = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return "replace-thread".equals(options.get("on-error", "shutdown"))
                ? StreamThreadExceptionResponse.REPLACE_THREAD
                : StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.ERROR || now == KafkaStreams.State.NOT_RUNNING) {
                ended.countDown();
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
        String dropped = options.get("dropped-file", "");
        if (!dropped.isEmpty()) {
            Backlog.reportDropped(streams, Path.of(dropped));
        }
        ended.await();
        if (streams.state() == KafkaStreams.State.ERROR) {
            System.exit(1);
        }
    }

    private static Topology topology(Options options) {
        String mode = options.get("mode");
        return switch (mode) {
            case "counter" -> counter(options);
            case "summarise" -> summarise(options);
            case "count_avro" -> countAvro(options);
            case "count_protobuf" -> counted(
                options,
                Formats.protobuf(Integer.parseInt(options.get("schema-id"))),
                (value, count) -> new Formats.Command(value.command(), value.args(), count));
            case "dedupe" -> "json".equals(options.get("values", "raw"))
                ? dedupe(options, new JsonSerde<>(RunCommand.class))
                : dedupe(options, Serdes.ByteArray());
            case "tumbling", "hopping", "session" -> Windows.topology(options);
            case "stream_join", "table_join" -> Joins.topology(options);
            case "backlog" -> Backlog.topology(options);
            case "nexmark" -> Nexmark.topology(options);
            default -> throw new IllegalArgumentException(
                "--mode " + mode + ": counter, dedupe, summarise, count_avro, count_protobuf, tumbling, "
                    + "hopping, session, stream_join, table_join, backlog or nexmark");
        };
    }

    private static Topology counter(Options options) {
        return wired(options, CountPerKey::new, Serdes.ByteArray(), Serdes.Long(), Serdes.ByteArray());
    }

    private static Topology countAvro(Options options) {
        Schema schema = new Schema.Parser().parse(options.get("schema"));
        return counted(
            options,
            Formats.avro(schema, Integer.parseInt(options.get("schema-id"))),
            (GenericRecord value, Long count) -> {
                value.put("count", count);
                return value;
            });
    }

    private static <V> Topology counted(Options options, Serde<V> values, BiFunction<V, Long, V> withCount) {
        return wired(options, () -> new CountTyped<>(withCount), values, Serdes.Long(), values);
    }

    private static Topology summarise(Options options) {
        Serde<Summarise.Stats> held = new JsonSerde<>(Summarise.Stats.class);
        return wired(options, Summarise::new, Serdes.ByteArray(), held, new JsonSerde<>(Summarise.Echo.class));
    }

    private static <V> Topology dedupe(Options options, Serde<V> values) {
        return wired(options, PassFirst::new, values, values, values);
    }

    private static <I, S, O> Topology wired(
            Options options, ProcessorSupplier<byte[], I, byte[], O> processor, Serde<I> in, Serde<S> held, Serde<O> out) {
        Serde<byte[]> keys = Serdes.ByteArray();
        StoreBuilder<KeyValueStore<byte[], S>> builder =
            Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(STORE), keys, held)
                .withLoggingEnabled(Map.of());
        StoreBuilder<KeyValueStore<byte[], S>> store =
            options.isOn("caching") ? builder.withCachingEnabled() : builder.withCachingDisabled();
        return new Topology()
            .addSource("in", keys.deserializer(), in.deserializer(), options.get("input"))
            .addProcessor("work", processor, "in")
            .addStateStore(store, "work")
            .addSink("out", options.get("output"), keys.serializer(), out.serializer(), "work");
    }

    private static Properties config(Options options) {
        Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, options.get("application-id"));
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, options.get("bootstrap"));
        config.put(StreamsConfig.STATE_DIR_CONFIG, options.get("state-dir"));
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, options.get("guarantee", "exactly_once_v2"));
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, options.get("commit-interval-ms", "100"));
        config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, options.get("threads", "1"));
        config.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, options.get("replication-factor", "1"));
        config.put(StreamsConfig.MAX_TASK_IDLE_MS_CONFIG, options.get("max-task-idle-ms", "0"));
        config.put(StreamsConfig.TRANSACTIONAL_STATE_STORES_CONFIG, options.isOn("transactional-stores"));
        config.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        String instance = options.get("group-instance-id", "");
        if (!instance.isEmpty()) {
            config.put(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG, instance);
        }
        int sessionMs = Integer.parseInt(options.get("session-timeout-ms", "10000"));
        config.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), sessionMs);
        config.put(
            StreamsConfig.producerPrefix(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG),
            Integer.parseInt(options.get("transaction-timeout-ms", "10000")));
        config.put(StreamsConfig.consumerPrefix(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG), Math.min(1000, sessionMs / 3));
        return config;
    }
}
