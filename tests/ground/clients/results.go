package main

import (
	"fmt"
	"io"
	"strings"
)

// maxPrintedProblems is the maximum number of printed problems of one check.
const maxPrintedProblems = 5

// results are the outcomes of checks, printed immediately.
type results struct {
	out      io.Writer
	failures int
}

// add prints the outcome of a check of one address: its problems, or a note if there are none.
func (r *results) add(address, check, note string, problems []string) {
	if len(problems) == 0 {
		fmt.Fprintf(r.out, "ok      %-14s %s: %s\n", address, check, note)
		return
	}
	r.failures++
	fmt.Fprintf(r.out, "FAILED  %-14s %s: %s\n", address, check, note)
	for _, problem := range problems[:min(len(problems), maxPrintedProblems)] {
		fmt.Fprintf(r.out, "          %s\n", strings.ReplaceAll(problem, "\n", "\n          "))
	}
	if hidden := len(problems) - maxPrintedProblems; hidden > 0 {
		fmt.Fprintf(r.out, "          and %d more\n", hidden)
	}
}

// check adds the outcome of a function, which returns a note or an error.
func (r *results) check(address, check string, run func() (string, error)) {
	note, err := run()
	if err != nil {
		r.add(address, check, note, []string{err.Error()})
		return
	}
	r.add(address, check, note, nil)
}
