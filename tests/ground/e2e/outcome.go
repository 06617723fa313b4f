package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// State is the result of the run of a spec.
type State string

const (
	Passed State = "passed"
	Failed State = "FAILED"
	// TimedOut specs were interrupted because they took too long.
	TimedOut State = "TIMEOUT"
	// Skipped specs need something that the cluster lacks.
	Skipped State = "SKIPPED"
)

// Outcome is the result of one spec in one cluster.
type Outcome struct {
	Spec     string
	State    State
	Message  string
	Duration time.Duration
}

// suiteReport is the part of Ginkgo's JSON report that is read.
type suiteReport struct {
	SpecReports []struct {
		LeafNodeType            string
		ContainerHierarchyTexts []string
		LeafNodeText            string
		State                   string
		RunTime                 time.Duration
		Failure                 *struct{ Message string }
	}
}

// parseReport returns the outcomes of the specs that were run. Specs without an outcome were not started. If the set-up of the suite
// failed, all specs have failed.
func parseReport(text []byte, specs []string) ([]Outcome, error) {
	var suites []suiteReport
	if err := json.Unmarshal(text, &suites); err != nil {
		return nil, err
	}
	var outcomes []Outcome
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			outcome := Outcome{Duration: spec.RunTime}
			if spec.Failure != nil {
				outcome.Message = spec.Failure.Message
			}
			texts := slices.DeleteFunc(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), func(text string) bool { return text == "" })
			outcome.Spec = strings.Join(texts, " ")
			switch spec.State {
			case "passed":
				outcome.State = Passed
			case "interrupted":
				outcome.State = TimedOut
			case "skipped", "pending":
				outcome.State = Skipped
				if outcome.Message == "" {
					// The spec was not selected, or the process was interrupted before it.
					continue
				}
			default:
				outcome.State = Failed
			}
			switch {
			case spec.LeafNodeType == "It" && slices.Contains(specs, outcome.Spec):
				outcomes = append(outcomes, outcome)
			case spec.LeafNodeType != "It" && outcome.State == Failed:
				return failAll(specs, outcome.Message), nil
			}
		}
	}
	return outcomes, nil
}

// failAll returns a failure with the same message for each spec.
func failAll(specs []string, message string) []Outcome {
	var outcomes []Outcome
	for _, spec := range specs {
		outcomes = append(outcomes, Outcome{Spec: spec, State: Failed, Message: message})
	}
	return outcomes
}

// firstLines returns the first lines of a message that have text.
func firstLines(message string, count int) string {
	var lines []string
	for _, line := range strings.Split(message, "\n") {
		if line = strings.TrimRight(line, " \t\r"); line != "" && len(lines) < count {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
