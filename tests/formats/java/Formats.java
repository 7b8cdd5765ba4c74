import io.apicurio.registry.serde.SerdeConfig;
import io.apicurio.registry.serde.avro.AvroKafkaDeserializer;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import io.apicurio.registry.serde.avro.AvroKafkaSerdeConfig;
import java.util.HexFormat;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;

/** Values of Java's side of test_java.py, by Apicurio's serializers with ids as Confluent writes them. */
public final class Formats {
    private Formats() {}

    public static void main(String[] args) {
        Map<String, Object> config = Map.of(
            SerdeConfig.REGISTRY_URL, args[0],
            SerdeConfig.ENABLE_CONFLUENT_ID_HANDLER, true,
            SerdeConfig.FIND_LATEST_ARTIFACT, true,
            SerdeConfig.EXPLICIT_ARTIFACT_ID, args[1] + "-value",
            SerdeConfig.USE_ID, "contentId");
        if (args[2].equals("write")) {
            try (AvroKafkaSerializer<GenericRecord> serializer = new AvroKafkaSerializer<>()) {
                serializer.configure(config, false);
                GenericRecord value = new GenericData.Record(new Schema.Parser().parse(args[3]));
                value.put("item", args[4]);
                value.put("count", Long.parseLong(args[5]));
                System.out.println(HexFormat.of().formatHex(serializer.serialize(args[1], value)));
            }
            return;
        }
        try (AvroKafkaDeserializer<GenericRecord> deserializer = new AvroKafkaDeserializer<>()) {
            deserializer.configure(config, false);
            GenericRecord value = deserializer.deserialize(args[1], HexFormat.of().parseHex(args[3]));
            System.out.println(value.get("item") + " " + value.get("count"));
        }
    }
}
