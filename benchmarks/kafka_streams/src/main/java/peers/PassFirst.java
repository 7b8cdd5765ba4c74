package peers;

import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;

/** Passes on the first record of each key and ignores the others. */
final class PassFirst<V> implements Processor<byte[], V, byte[], V> {
    private ProcessorContext<byte[], V> context;
    private KeyValueStore<byte[], V> seen;

    @Override
    public void init(ProcessorContext<byte[], V> context) {
        this.context = context;
        this.seen = context.getStateStore(Main.STORE);
    }

    @Override
    public void process(Record<byte[], V> record) {
        if (seen.putIfAbsent(record.key(), record.value()) == null) {
            context.forward(record);
        }
    }
}
