// Reads operations as a JSON list, and prints which objects' histories are not linearizable: go run . nodes|registers
//
// An operation whose outcome isn't known may take effect at any time after its call, also when nobody looks any more: so
// it never has to be left out.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

const limit = 30 * time.Second

// What every operation has: the object that it is on, its outcome, and when it was called and returned.
type common struct {
	On       string `json:"on"`
	Op       string `json:"op"`
	Outcome  string `json:"outcome"`
	CallNs   int64  `json:"call_ns"`
	ReturnNs int64  `json:"return_ns"`
}

func (one common) shared() common { return one }

type operation interface{ shared() common }

type result struct {
	Verdict   string   `json:"verdict"`
	Illegal   []string `json:"illegal"`
	Undecided []string `json:"undecided"`
}

func check[T operation](model porcupine.Model, history []T) porcupine.CheckResult {
	operations := make([]porcupine.Operation, 0, len(history))
	for _, op := range history {
		span := op.shared()
		end := span.ReturnNs
		if span.Outcome == "unknown" {
			end = math.MaxInt64
		}
		operations = append(operations, porcupine.Operation{Input: op, Call: span.CallNs, Return: end})
	}
	return porcupine.CheckOperationsTimeout(model, operations, limit)
}

func judge[T operation](model porcupine.Model, input io.Reader) (result, error) {
	found := result{Verdict: "ok", Illegal: []string{}, Undecided: []string{}}
	var history []T
	if err := json.NewDecoder(input).Decode(&history); err != nil {
		return found, fmt.Errorf("the history isn't a JSON list of operations: %w", err)
	}
	byObject := map[string][]T{}
	for _, op := range history {
		name := op.shared().On
		byObject[name] = append(byObject[name], op)
	}
	for name, operations := range byObject {
		switch check(model, operations) {
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
	return found, nil
}

func main() {
	judges := map[string]func() (result, error){
		"nodes":     func() (result, error) { return judge[nodeOperation](nodes, os.Stdin) },
		"registers": func() (result, error) { return judge[registerOperation](registers, os.Stdin) },
	}
	if len(os.Args) != 2 || judges[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: go run . nodes|registers")
		os.Exit(2)
	}
	found, err := judges[os.Args[1]]()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(found)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
