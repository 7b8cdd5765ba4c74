package main

import "github.com/anishathalye/porcupine"

// On a node of the lock service: a value with a version that grows with each change, deletions included.
type nodeOperation struct {
	common
	Expected *int64  `json:"expected"`
	Data     *string `json:"data"`
	Version  int64   `json:"version"`
}

type node struct {
	version int64
	exists  bool
	data    string
}

var nodes = porcupine.Model{
	Init: func() interface{} { return node{} },
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		now, op := state.(node), input.(nodeOperation)
		if op.Op == "get" {
			return sees(now, op), now
		}
		return change(now, op)
	},
}

func sees(now node, op nodeOperation) bool {
	if op.Data == nil {
		return !now.exists
	}
	return now.exists && now.data == *op.Data && now.version == op.Version
}

func change(now node, op nodeOperation) (bool, node) {
	there := int64(0)
	if now.exists {
		there = now.version
	}
	if op.Expected != nil && *op.Expected != there {
		return op.Outcome != "ok", now
	}
	next := node{version: now.version + 1}
	if op.Op == "put" {
		next.exists, next.data = true, *op.Data
	}
	return op.Outcome == "unknown" || (op.Outcome == "ok" && op.Version == next.version), next
}
