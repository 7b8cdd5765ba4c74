package peers;

import java.util.function.BiFunction;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;

/** Counts the records of each key, and sends each value with the running count in it. */
final class CountTyped<V> implements Processor<byte[], V, byte[], V> {
    private final BiFunction<V, Long, V> withCount;
    private ProcessorContext<byte[], V> context;
    private KeyValueStore<byte[], Long> counts;

    CountTyped(BiFunction<V, Long, V> withCount) {
        this.withCount = withCount;
    }

    @Override
    public void init(ProcessorContext<byte[], V> context) {
        this.context = context;
        this.counts = context.getStateStore(Main.STORE);
    }

    @Override
    public void process(Record<byte[], V> record) {
        Long before = counts.get(record.key());
        long count = before == null ? 1 : before + 1;
        counts.put(record.key(), count);
        context.forward(record.withValue(withCount.apply(record.value(), count)));
    }
}
