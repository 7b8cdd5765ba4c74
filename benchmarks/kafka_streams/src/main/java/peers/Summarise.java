package peers;

import java.nio.charset.StandardCharsets;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;

/** Folds the values of each key, and sends every input with its key's state after it: the crash run's first actor. */
final class Summarise implements Processor<byte[], byte[], byte[], Summarise.Echo> {
    /** What was seen of a key so far. */
    public record Stats(long count, long sum, long min, long max) {}

    /** An input, and its key's state after it. */
    public record Echo(long offset, long value, Stats stats) {}

    private ProcessorContext<byte[], Echo> context;
    private KeyValueStore<byte[], Stats> stats;

    @Override
    public void init(ProcessorContext<byte[], Echo> context) {
        this.context = context;
        this.stats = context.getStateStore(Main.STORE);
    }

    @Override
    public void process(Record<byte[], byte[]> record) {
        long value = Long.parseLong(new String(record.value(), StandardCharsets.US_ASCII));
        Stats held = stats.get(record.key());
        Stats now = held == null
            ? new Stats(1, value, value, value)
            : new Stats(held.count() + 1, held.sum() + value, Math.min(held.min(), value), Math.max(held.max(), value));
        stats.put(record.key(), now);
        long offset = context.recordMetadata().orElseThrow().offset();
        context.forward(record.withValue(new Echo(offset, value, now)));
    }
}
