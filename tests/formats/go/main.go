// Values of Go's side of tests/formats/test_go.py, by franz-go's client of schema registries.
//
//	formats REGISTRY SUBJECT avro|json|protobuf write ITEM COUNT    prints hexadecimal bytes
//	formats REGISTRY SUBJECT avro|json|protobuf read HEX            prints ITEM COUNT
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"github.com/twmb/franz-go/pkg/sr"
)

type order struct {
	Item  string `json:"item"`
	Count int64  `json:"count"`
}

type coding struct {
	encode func(order) ([]byte, error)
	decode func([]byte, *order) error
}

// Avro and Protobuf by hand: two fields need no library. Go's signed varints are zigzag, as Avro's numbers.
var codings = map[string]coding{
	"avro": {
		func(o order) ([]byte, error) {
			raw := append(binary.AppendVarint(nil, int64(len(o.Item))), o.Item...)
			return binary.AppendVarint(raw, o.Count), nil
		},
		func(raw []byte, o *order) error {
			in := bytes.NewReader(raw)
			size, err := binary.ReadVarint(in)
			if err != nil {
				return err
			}
			text := make([]byte, size)
			if _, err = in.Read(text); err != nil {
				return err
			}
			o.Item = string(text)
			o.Count, err = binary.ReadVarint(in)
			return err
		},
	},
	"json": {
		func(o order) ([]byte, error) { return json.Marshal(o) },
		func(raw []byte, o *order) error { return json.Unmarshal(raw, o) },
	},
	"protobuf": {
		func(o order) ([]byte, error) {
			raw := append(binary.AppendUvarint([]byte{10}, uint64(len(o.Item))), o.Item...)
			return binary.AppendUvarint(append(raw, 16), uint64(o.Count)), nil
		},
		func(raw []byte, o *order) error {
			size, n := binary.Uvarint(raw[1:])
			text := raw[1+n:]
			o.Item = string(text[:size])
			count, _ := binary.Uvarint(text[size+1:])
			o.Count = int64(count)
			return nil
		},
	},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	client, err := sr.NewClient(sr.URLs(args[0]))
	if err != nil {
		return err
	}
	schema, err := client.SchemaByVersion(context.Background(), args[1], -1)
	if err != nil {
		return err
	}
	own := codings[args[2]]
	options := []sr.EncodingOpt{
		sr.EncodeFn(func(value any) ([]byte, error) { return own.encode(value.(order)) }),
		sr.DecodeFn(func(raw []byte, value any) error { return own.decode(raw, value.(*order)) }),
	}
	if args[2] == "protobuf" {
		options = append(options, sr.Index(0))
	}
	var serde sr.Serde
	serde.Register(schema.ID, order{}, options...)
	if args[3] == "write" {
		count, err := strconv.ParseInt(args[5], 10, 64)
		if err != nil {
			return err
		}
		raw, err := serde.Encode(order{args[4], count})
		fmt.Println(hex.EncodeToString(raw))
		return err
	}
	raw, err := hex.DecodeString(args[4])
	if err != nil {
		return err
	}
	var value order
	if err := serde.Decode(raw, &value); err != nil {
		return err
	}
	fmt.Println(value.Item, value.Count)
	return nil
}
