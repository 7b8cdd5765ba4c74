import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.apicurio.registry.serde.SerdeConfig;
import io.apicurio.registry.serde.avro.AvroKafkaDeserializer;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import io.apicurio.registry.serde.jsonschema.JsonSchemaKafkaDeserializer;
import io.apicurio.registry.serde.jsonschema.JsonSchemaKafkaSerializer;
import java.util.HexFormat;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serializer;

/** Values of Java's side of test_java.py, by Apicurio's serializers with ids as Confluent writes them. */
public final class Formats {
    private Formats() {}

    public static void main(String[] args) {
        Map<String, Object> config = Map.of(
            SerdeConfig.REGISTRY_URL, args[0],
            SerdeConfig.ENABLE_CONFLUENT_ID_HANDLER, true,
            SerdeConfig.FIND_LATEST_ARTIFACT, true,
            SerdeConfig.EXPLICIT_ARTIFACT_ID, args[1] + "-value",
            SerdeConfig.USE_ID, "contentId",
            SerdeConfig.DESERIALIZER_SPECIFIC_VALUE_RETURN_CLASS, JsonNode.class);
        boolean isAvro = args[2].equals("avro");
        if (args[3].equals("write")) {
            Object value = isAvro ? record(args[4], args[5], args[6]) : node(args[5], args[6]);
            try (Serializer<Object> serializer = isAvro ? new AvroKafkaSerializer<>() : new JsonSchemaKafkaSerializer<>()) {
                serializer.configure(config, false);
                System.out.println(HexFormat.of().formatHex(serializer.serialize(args[1], value)));
            }
            return;
        }
        try (Deserializer<Object> deserializer =
                isAvro ? new AvroKafkaDeserializer<>() : new JsonSchemaKafkaDeserializer<>()) {
            deserializer.configure(config, false);
            Object value = deserializer.deserialize(args[1], HexFormat.of().parseHex(args[4]));
            System.out.println(value instanceof GenericRecord fields
                ? fields.get("item") + " " + fields.get("count")
                : ((JsonNode) value).get("item").asText() + " " + ((JsonNode) value).get("count"));
        }
    }

    private static GenericRecord record(String schema, String item, String count) {
        GenericRecord value = new GenericData.Record(new Schema.Parser().parse(schema));
        value.put("item", item);
        value.put("count", Long.parseLong(count));
        return value;
    }

    private static JsonNode node(String item, String count) {
        return new ObjectMapper().createObjectNode().put("item", item).put("count", Long.parseLong(count));
    }
}
