package peers;

import com.fasterxml.jackson.databind.PropertyNamingStrategies.SnakeCaseStrategy;
import com.fasterxml.jackson.databind.annotation.JsonNaming;
import java.time.Duration;
import java.util.Comparator;
import java.util.Set;
import java.util.function.BinaryOperator;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/** Nexmark's queries, each with the results of its namesake in tests/nexmark/queries.py: rows of JSON. */
final class Nexmark {
    @JsonNaming(SnakeCaseStrategy.class)
    public record Person(long id, String name, String city, String state, long atMs) {}

    @JsonNaming(SnakeCaseStrategy.class)
    public record Auction(long id, String item, long seller, long category, long atMs, long expiresMs) {}

    @JsonNaming(SnakeCaseStrategy.class)
    public record Bid(
        long id, long auction, long bidder, long price, String channel, String url, String extra, long atMs) {}

    /** A bid in the time of its auction. */
    public record Sale(Auction auction, Bid bid) {}

    /** How many bids an auction has in a window. */
    public record Bids(long auction, long count) {}

    /** What is known of a seller in a window: the name once she has come, and whether she has opened an auction. */
    public record User(String name, boolean opened) {}

    /** A mean that is still to be divided. */
    public record Mean(long sum, long count) {}

    static final Serde<Sale> SALE = new JsonSerde<>(Sale.class);
    private static final Serde<String> TEXT = Serdes.String();
    private static final Serde<Long> LONG = Serdes.Long();
    private static final Serde<Person> PERSON = new JsonSerde<>(Person.class);
    private static final Serde<Auction> AUCTION = new JsonSerde<>(Auction.class);
    private static final Serde<Bid> BID = new JsonSerde<>(Bid.class);
    private static final Serde<Bids> BIDS = new JsonSerde<>(Bids.class);
    private static final Serde<User> USER = new JsonSerde<>(User.class);
    private static final Serde<Mean> MEAN = new JsonSerde<>(Mean.class);
    private static final Serde<Object[]> ROW = new JsonSerde<>(Object[].class);
    private static final Set<String> STATES = Set.of("OR", "ID", "CA");
    private static final Duration TEN_S = Duration.ofSeconds(10);
    private static final Comparator<Bid> BY_PRICE =
        Comparator.comparingLong(Bid::price).thenComparing(Bid::id, Comparator.reverseOrder());
    private static final Comparator<Bid> BY_TIME = Comparator.comparingLong(Bid::atMs).thenComparingLong(Bid::id);
    private static final Comparator<Bids> BY_COUNT =
        Comparator.comparingLong(Bids::count).thenComparing(Bids::auction, Comparator.reverseOrder());

    private final StreamsBuilder builder = new StreamsBuilder();
    private final String prefix;
    private final Duration grace;

    private Nexmark(Options options) {
        prefix = options.get("prefix");
        grace = Duration.ofMillis(Long.parseLong(options.get("grace-ms")));
    }

    static Topology topology(Options options) {
        Nexmark nexmark = new Nexmark(options);
        String query = options.get("query");
        KStream<?, Object[]> rows = switch (query) {
            case "q3" -> nexmark.q3();
            case "q4" -> nexmark.q4();
            case "q5" -> nexmark.q5();
            case "q7" -> nexmark.q7();
            case "q8" -> nexmark.q8();
            case "q11" -> nexmark.q11();
            case "q18" -> nexmark.q18();
            case "q20" -> nexmark.q20();
            default -> throw new IllegalArgumentException("--query " + query);
        };
        // A row's key is its first column, so that rows that take each other's place stay in order.
        rows.selectKey((key, row) -> row[0].toString()).to(nexmark.prefix + "rows", Produced.with(TEXT, ROW));
        return nexmark.builder.build();
    }

    static <V> StoreBuilder<KeyValueStore<String, V>> store(String name, Serde<V> values) {
        return Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(name), TEXT, values).withCachingEnabled();
    }

    private KStream<String, Object[]> q3() {
        KStream<String, Auction> auctions = auctions()
            .selectKey((id, auction) -> text(auction.seller()))
            .repartition(Repartitioned.with(TEXT, AUCTION));
        return OneWithMany.join(builder, persons(), PERSON, auctions, AUCTION)
            .filter((seller, pair) -> pair.many().category() == 10 && STATES.contains(pair.one().state()))
            .mapValues(pair -> row(pair.one().name(), pair.one().city(), pair.one().state(), pair.many().id()));
    }

    private KStream<String, Object[]> q4() {
        KStream<String, Sale> offers = OneWithMany.join(builder, auctions(), AUCTION, bidsByAuction(), BID)
            .mapValues(pair -> new Sale(pair.one(), pair.many()))
            .filter((id, sale) -> sale.auction().atMs() <= sale.bid().atMs()
                && sale.bid().atMs() <= sale.auction().expiresMs());
        return Sales.of(builder, offers, grace)
            .map((id, sale) -> KeyValue.pair(text(sale.auction().category()), sale.bid().price()))
            .groupByKey(Grouped.with(TEXT, LONG))
            .aggregate(
                () -> new Mean(0, 0),
                (category, price, mean) -> new Mean(mean.sum() + price, mean.count() + 1),
                Materialized.with(TEXT, MEAN))
            .toStream()
            .mapValues((category, mean) -> row(Long.valueOf(category), (double) mean.sum() / mean.count()));
    }

    private KStream<String, Object[]> q5() {
        KTable<Windowed<String>, Long> counts = bids()
            .map((bidder, bid) -> KeyValue.pair(text(bid.auction()), bid.id()))
            .groupByKey(Grouped.with(TEXT, LONG))
            .windowedBy(TimeWindows.ofSizeAndGrace(TEN_S, grace).advanceBy(Duration.ofSeconds(2)))
            .count(Materialized.with(TEXT, LONG));
        return closed(counts)
            .map((window, count) ->
                KeyValue.pair(text(window.window().end()), new Bids(Long.parseLong(window.key()), count)))
            .groupByKey(Grouped.with(TEXT, BIDS))
            .reduce(BinaryOperator.maxBy(BY_COUNT)::apply, Materialized.with(TEXT, BIDS))
            .toStream()
            .mapValues((end, bids) -> row(Long.valueOf(end), bids.auction(), bids.count()));
    }

    private KStream<Windowed<String>, Object[]> q7() {
        return closed(bids()
            .groupBy((bidder, bid) -> "all", Grouped.with(TEXT, BID))
            .windowedBy(TimeWindows.ofSizeAndGrace(TEN_S, grace))
            .reduce(BinaryOperator.maxBy(BY_PRICE)::apply, Materialized.with(TEXT, BID)))
            .mapValues((window, bid) -> row(window.window().start(), bid.auction(), bid.bidder(), bid.price()));
    }

    private KStream<Windowed<String>, Object[]> q8() {
        KGroupedStream<String, String> sellers = auctions()
            .map((id, auction) -> KeyValue.pair(text(auction.seller()), ""))
            .groupByKey(Grouped.with(TEXT, TEXT));
        KTable<Windowed<String>, User> users = persons()
            .groupByKey(Grouped.with(TEXT, PERSON))
            .cogroup((String id, Person person, User user) -> new User(person.name(), user.opened()))
            .cogroup(sellers, (id, nothing, user) -> new User(user.name(), true))
            .windowedBy(TimeWindows.ofSizeAndGrace(TEN_S, grace))
            .aggregate(() -> new User(null, false), Materialized.with(TEXT, USER));
        return closed(users)
            .filter((window, user) -> user.name() != null && user.opened())
            .mapValues((window, user) -> row(Long.valueOf(window.key()), user.name(), window.window().start()));
    }

    private KStream<Windowed<String>, Object[]> q11() {
        return closed(bids()
            .groupByKey(Grouped.with(TEXT, BID))
            .windowedBy(SessionWindows.ofInactivityGapAndGrace(TEN_S, grace))
            .count(Materialized.with(TEXT, LONG)))
            .mapValues((session, count) ->
                row(Long.valueOf(session.key()), count, session.window().start(), session.window().end()));
    }

    private KStream<String, Object[]> q18() {
        return bids()
            .groupBy((bidder, bid) -> bid.bidder() + "/" + bid.auction(), Grouped.with(TEXT, BID))
            .reduce(BinaryOperator.maxBy(BY_TIME)::apply, Materialized.with(TEXT, BID))
            .toStream()
            .mapValues((names, bid) -> row(names, bid.id(), 1));
    }

    private KStream<String, Object[]> q20() {
        return OneWithMany.join(builder, auctions(), AUCTION, bidsByAuction(), BID)
            .filter((id, pair) -> pair.one().category() == 10)
            .mapValues(pair -> row(pair.one().id(), pair.one().item(), pair.many().bidder(), pair.many().price()));
    }

    private KStream<String, Person> persons() {
        return builder.stream(prefix + "persons", Consumed.with(TEXT, PERSON));
    }

    private KStream<String, Auction> auctions() {
        return builder.stream(prefix + "auctions", Consumed.with(TEXT, AUCTION));
    }

    private KStream<String, Bid> bids() {
        return builder.stream(prefix + "bids", Consumed.with(TEXT, BID));
    }

    private KStream<String, Bid> bidsByAuction() {
        return bids().selectKey((bidder, bid) -> text(bid.auction())).repartition(Repartitioned.with(TEXT, BID));
    }

    /** The final results of windows, each when its window closes. */
    private static <V> KStream<Windowed<String>, V> closed(KTable<Windowed<String>, V> windows) {
        return windows.suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded())).toStream();
    }

    private static String text(long number) {
        return String.valueOf(number);
    }

    private static Object[] row(Object... columns) {
        return columns;
    }
}
