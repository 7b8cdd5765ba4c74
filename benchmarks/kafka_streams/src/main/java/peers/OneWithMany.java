package peers;

import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;

/** Joins each record of many with the one of its key, whichever comes first: a KTable joins only what comes later. */
final class OneWithMany<O, M> implements Processor<String, OneWithMany.Pair<O, M>, String, OneWithMany.Pair<O, M>> {
    /** A record of either stream on its way in, of both on its way out. */
    record Pair<O, M>(O one, M many) {}

    private static final String ONES = "ones";
    private static final String EARLY = "early";
    private ProcessorContext<String, Pair<O, M>> context;
    private KeyValueStore<String, O> ones;
    private KeyValueStore<String, List<M>> early;

    static <O, M> KStream<String, Pair<O, M>> join(
            StreamsBuilder builder, KStream<String, O> ones, Serde<O> one, KStream<String, M> many, Serde<M> other) {
        Serde<List<M>> list = Serdes.ListSerde(ArrayList.class, other);
        builder.addStateStore(Nexmark.store(ONES, one)).addStateStore(Nexmark.store(EARLY, list));
        return ones.mapValues(value -> new Pair<O, M>(value, null))
            .merge(many.mapValues(value -> new Pair<O, M>(null, value)))
            .process(OneWithMany<O, M>::new, ONES, EARLY);
    }

    @Override
    public void init(ProcessorContext<String, Pair<O, M>> context) {
        this.context = context;
        this.ones = context.getStateStore(ONES);
        this.early = context.getStateStore(EARLY);
    }

    @Override
    public void process(Record<String, Pair<O, M>> record) {
        if (record.value().one() == null) {
            join(record, record.value().many());
            return;
        }
        ones.put(record.key(), record.value().one());
        List<M> waiting = early.get(record.key());
        if (waiting != null) {
            early.delete(record.key());
            waiting.forEach(many -> context.forward(record.withValue(new Pair<>(record.value().one(), many))));
        }
    }

    private void join(Record<String, Pair<O, M>> record, M many) {
        O one = ones.get(record.key());
        if (one != null) {
            context.forward(record.withValue(new Pair<>(one, many)));
            return;
        }
        List<M> before = early.get(record.key());
        List<M> waiting = before == null ? new ArrayList<>() : before;
        waiting.add(many);
        early.put(record.key(), waiting);
    }
}
