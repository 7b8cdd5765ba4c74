package peers;

import com.google.protobuf.CodedInputStream;
import com.google.protobuf.CodedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;

/**
 * Avro and Protobuf behind the id of a schema, as Confluent's serdes have them, which aren't in Maven Central.
 *
 * They do what those do when the schema is cached, and no more: the ids are given, and no registry is asked.
 */
final class Formats {
    private static final byte MAGIC = 0;
    private static final int ID_BYTES = 5;

    private Formats() {}

    interface Write<V> {
        void to(ByteArrayOutputStream out, V value) throws IOException;
    }

    interface Read<V> {
        V from(byte[] bytes, int start) throws IOException;
    }

    static Serde<GenericRecord> avro(Schema schema, int id) {
        GenericDatumWriter<GenericRecord> writer = new GenericDatumWriter<>(schema);
        GenericDatumReader<GenericRecord> reader = new GenericDatumReader<>(schema, schema);
        return framed(
            id,
            (out, value) -> {
                BinaryEncoder encoder = EncoderFactory.get().directBinaryEncoder(out, null);
                writer.write(value, encoder);
                encoder.flush();
            },
            (bytes, start) ->
                reader.read(null, DecoderFactory.get().binaryDecoder(bytes, start, bytes.length - start, null)));
    }

    static Serde<Command> protobuf(int id) {
        return framed(id, (out, value) -> {
            // The index of the schema's first message.
            out.write(0);
            value.writeTo(out);
        }, (bytes, start) -> Command.parse(bytes, start + 1));
    }

    private static <V> Serde<V> framed(int id, Write<V> write, Read<V> read) {
        byte[] prefix = ByteBuffer.allocate(ID_BYTES).put(MAGIC).putInt(id).array();
        Deserializer<V> deserializer = (topic, bytes) -> {
            if (bytes == null) {
                return null;
            }
            if (bytes[0] != MAGIC || ByteBuffer.wrap(bytes, 1, 4).getInt() != id) {
                throw new SerializationException("another schema in " + topic);
            }
            try {
                return read.from(bytes, ID_BYTES);
            } catch (IOException error) {
                throw new SerializationException("can't be read in " + topic, error);
            }
        };
        return Serdes.serdeFrom((topic, value) -> {
            if (value == null) {
                return null;
            }
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            try {
                out.write(prefix);
                write.to(out, value);
            } catch (IOException error) {
                throw new SerializationException("can't be written to " + topic, error);
            }
            return out.toByteArray();
        }, deserializer);
    }

    /** The message of the benchmark, with the code that protoc would generate for it. */
    record Command(String command, List<String> args, long count) {
        static Command parse(byte[] bytes, int start) throws IOException {
            CodedInputStream in = CodedInputStream.newInstance(bytes, start, bytes.length - start);
            String command = "";
            List<String> args = new ArrayList<>();
            long count = 0;
            for (int tag = in.readTag(); tag != 0; tag = in.readTag()) {
                switch (tag) {
                    case 10 -> command = in.readStringRequireUtf8();
                    case 18 -> args.add(in.readStringRequireUtf8());
                    case 24 -> count = in.readInt64();
                    default -> in.skipField(tag);
                }
            }
            return new Command(command, args, count);
        }

        void writeTo(ByteArrayOutputStream out) throws IOException {
            CodedOutputStream coded = CodedOutputStream.newInstance(out);
            coded.writeString(1, command);
            for (String arg : args) {
                coded.writeString(2, arg);
            }
            if (count != 0) {
                coded.writeInt64(3, count);
            }
            coded.flush();
        }
    }
}
