package main

import "github.com/anishathalye/porcupine"

// So many registers are one object, because a read may see several at one moment.
const shelf = 4

// On registers that lie side by side; "" is the value of one that holds nothing. `Seen` is what a read saw of which,
// `Held` what a write found in the register before it, and `Expected` what a compare-and-set compared with.
type registerOperation struct {
	common
	Register int            `json:"register"`
	Expected string         `json:"expected"`
	Value    string         `json:"value"`
	Held     string         `json:"held"`
	Seen     map[int]string `json:"seen"`
}

var registers = porcupine.Model{
	Init: func() interface{} { return [shelf]string{} },
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		now, op := state.([shelf]string), input.(registerOperation)
		if op.Op == "read" {
			for register, value := range op.Seen {
				if now[register] != value {
					return false, now
				}
			}
			return true, now
		}
		held := now[op.Register]
		next := now
		next[op.Register] = op.Value
		if op.Op == "write" {
			return op.Outcome == "unknown" || op.Held == held, next
		}
		if held != op.Expected {
			return op.Outcome != "ok", now
		}
		return op.Outcome != "conflict", next
	},
}
