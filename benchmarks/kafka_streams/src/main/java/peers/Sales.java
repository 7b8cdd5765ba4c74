package peers;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;

/** Keeps the highest bid of each auction, and forwards it when the auction has expired by stream time. */
final class Sales implements Processor<String, Nexmark.Sale, String, Nexmark.Sale> {
    private static final String BEST = "best";
    private static final String ENDS = "ends";
    private static final Duration TICK = Duration.ofSeconds(1);
    private final long graceMs;
    private ProcessorContext<String, Nexmark.Sale> context;
    private KeyValueStore<String, Nexmark.Sale> best;
    /** Auctions in the order in which they expire: the times have as many digits until the year 2286. */
    private KeyValueStore<String, String> ends;

    private Sales(Duration grace) {
        graceMs = grace.toMillis();
    }

    static KStream<String, Nexmark.Sale> of(StreamsBuilder builder, KStream<String, Nexmark.Sale> offers, Duration grace) {
        builder.addStateStore(Nexmark.store(BEST, Nexmark.SALE)).addStateStore(Nexmark.store(ENDS, Serdes.String()));
        return offers.process(() -> new Sales(grace), BEST, ENDS);
    }

    @Override
    public void init(ProcessorContext<String, Nexmark.Sale> context) {
        this.context = context;
        this.best = context.getStateStore(BEST);
        this.ends = context.getStateStore(ENDS);
        context.schedule(TICK, PunctuationType.STREAM_TIME, this::close);
    }

    @Override
    public void process(Record<String, Nexmark.Sale> record) {
        Nexmark.Sale before = best.get(record.key());
        if (before == null) {
            ends.put(record.value().auction().expiresMs() + "/" + record.key(), record.key());
        }
        if (before == null || record.value().bid().price() > before.bid().price()) {
            best.put(record.key(), record.value());
        }
    }

    private void close(long streamTimeMs) {
        List<KeyValue<String, String>> expired = new ArrayList<>();
        try (KeyValueIterator<String, String> due = ends.range(null, String.valueOf(streamTimeMs - graceMs))) {
            due.forEachRemaining(expired::add);
        }
        for (KeyValue<String, String> end : expired) {
            ends.delete(end.key);
            Nexmark.Sale sale = best.delete(end.value);
            if (sale != null) {
                context.forward(new Record<>(end.value, sale, sale.auction().expiresMs()));
            }
        }
    }
}
