package peers;

import java.nio.charset.StandardCharsets;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;

/** Counts the records of each key, and sends every running count with the record that led to it, "count:value". */
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
        String told = count + ":" + new String(record.value(), StandardCharsets.US_ASCII);
        context.forward(record.withValue(told.getBytes(StandardCharsets.US_ASCII)));
    }
}
