package main

import (
	"fmt"
	"io"
	"strings"
)

// shownProblems is how many problems of one check are printed.
const shownProblems = 5

// results are the outcomes of checks, printed as they come.
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
	for _, problem := range problems[:min(len(problems), shownProblems)] {
		fmt.Fprintf(r.out, "          %s\n", strings.ReplaceAll(problem, "\n", "\n          "))
	}
	if hidden := len(problems) - shownProblems; hidden > 0 {
		fmt.Fprintf(r.out, "          and %d more\n", hidden)
	}
}

// check adds the outcome of a function that says what it did, or fails.
func (r *results) check(address, check string, run func() (string, error)) {
	note, err := run()
	if err != nil {
		r.add(address, check, note, []string{err.Error()})
		return
	}
	r.add(address, check, note, nil)
}
