// Reads operations on nodes as a JSON list, and prints which nodes' histories are not linearizable.
//
// A node is a value with a version that grows with each change, deletions included. An operation whose outcome isn't
// known may take effect at any time after its call, also when nobody looks any more: so it never has to be left out.
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Node     string  `json:"node"`
	Op       string  `json:"op"`
	Expected *int64  `json:"expected"`
	Data     *string `json:"data"`
	Outcome  string  `json:"outcome"`
	Version  int64   `json:"version"`
	CallNs   int64   `json:"call_ns"`
	ReturnNs int64   `json:"return_ns"`
}

type node struct {
	version int64
	exists  bool
	data    string
}

type result struct {
	Verdict   string   `json:"verdict"`
	Illegal   []string `json:"illegal"`
	Undecided []string `json:"undecided"`
}

var model = porcupine.Model{
	Init: func() interface{} { return node{} },
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		now, op := state.(node), input.(operation)
		if op.Op == "get" {
			return sees(now, op), now
		}
		return change(now, op)
	},
}

func sees(now node, op operation) bool {
	if op.Data == nil {
		return !now.exists
	}
	return now.exists && now.data == *op.Data && now.version == op.Version
}

func change(now node, op operation) (bool, node) {
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

func check(history []operation, limit time.Duration) porcupine.CheckResult {
	operations := make([]porcupine.Operation, 0, len(history))
	for _, op := range history {
		end := op.ReturnNs
		if op.Outcome == "unknown" {
			end = math.MaxInt64
		}
		operations = append(operations, porcupine.Operation{Input: op, Call: op.CallNs, Return: end})
	}
	return porcupine.CheckOperationsTimeout(model, operations, limit)
}

func main() {
	var history []operation
	if err := json.NewDecoder(os.Stdin).Decode(&history); err != nil {
		fmt.Fprintln(os.Stderr, "the history isn't a JSON list of operations:", err)
		os.Exit(2)
	}
	byNode := map[string][]operation{}
	for _, op := range history {
		byNode[op.Node] = append(byNode[op.Node], op)
	}
	found := result{Verdict: "ok", Illegal: []string{}, Undecided: []string{}}
	for name, operations := range byNode {
		switch check(operations, 30*time.Second) {
		case porcupine.Illegal:
			found.Illegal = append(found.Illegal, name)
		case porcupine.Unknown:
			found.Undecided = append(found.Undecided, name)
		}
	}
	sort.Strings(found.Illegal)
	sort.Strings(found.Undecided)
	if len(found.Illegal) > 0 {
		found.Verdict = "illegal"
	} else if len(found.Undecided) > 0 {
		found.Verdict = "unknown"
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		os.Exit(2)
	}
}
