package peers;

import java.nio.charset.StandardCharsets;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;

/** Counts the records of each key, and sends every running count in decimal digits. */
final class CountPerKey implements Processor<byte[], byte[], byte[], byte[]> {
    private ProcessorContext<byte[], byte[]> context;
    private KeyValueStore<byte[], Long> counts;

    @Override
    public void init(ProcessorContext<byte[], byte[]> context) {
        this.context = context;
        this.counts = context.getStateStore(Main.STORE);
    }

    @Override
    public void process(Record<byte[], byte[]> record) {
        Long held = counts.get(record.key());
        long count = held == null ? 1 : held + 1;
        counts.put(record.key(), count);
        context.forward(record.withValue(Long.toString(count).getBytes(StandardCharsets.US_ASCII)));
    }
}
