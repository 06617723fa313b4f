package e2e

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// messageLines is the maximum number of printed lines of a failure message.
const messageLines = 6

// Results are the outcomes of specs by cluster.
type Results struct {
	clusters []string
	outcomes map[string]map[string]Outcome
}

// NewResults returns empty results with a column for each cluster.
func NewResults(clusters ...string) *Results {
	r := &Results{clusters: clusters, outcomes: map[string]map[string]Outcome{}}
	return r
}

// Add stores the outcome of a spec in a cluster.
func (r *Results) Add(cluster string, outcome Outcome) {
	if r.outcomes[outcome.Spec] == nil {
		r.outcomes[outcome.Spec] = map[string]Outcome{}
	}
	r.outcomes[outcome.Spec][cluster] = outcome
}

// Failures returns the number of runs that did not pass.
func (r *Results) Failures() int {
	count := 0
	for _, row := range r.outcomes {
		for _, outcome := range row {
			if outcome.State != Passed {
				count++
			}
		}
	}
	return count
}

// Write prints a row for each spec and a summary for each cluster. A dash stands for a spec that is excluded in a cluster.
func (r *Results) Write(out io.Writer) error {
	var text strings.Builder
	row := func(cells []string, spec string) {
		for index, cell := range cells {
			fmt.Fprintf(&text, "%-*s  ", max(len(r.clusters[index]), len(TimedOut)), cell)
		}
		fmt.Fprintln(&text, spec)
	}
	row(r.clusters, "spec")
	var specs []string
	for spec := range r.outcomes {
		specs = append(specs, spec)
	}
	slices.Sort(specs)
	passed, total := map[string]int{}, map[string]int{}
	for _, spec := range specs {
		var cells []string
		for _, cluster := range r.clusters {
			outcome, found := r.outcomes[spec][cluster]
			if !found {
				cells = append(cells, "-")
				continue
			}
			total[cluster]++
			if outcome.State == Passed {
				passed[cluster]++
			}
			cells = append(cells, string(outcome.State))
		}
		row(cells, spec)
	}
	for _, cluster := range r.clusters {
		fmt.Fprintf(&text, "%s: %d of %d specs passed\n", cluster, passed[cluster], total[cluster])
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// Line formats an outcome as one line, followed by the first lines of the message of a failure.
func (o Outcome) Line(cluster string) string {
	line := fmt.Sprintf("%-7s %4.0f s  %s  %s", o.State, o.Duration.Seconds(), cluster, o.Spec)
	if message := firstLines(o.Message, messageLines); message != "" {
		line += "\n    " + strings.ReplaceAll(message, "\n", "\n    ")
	}
	return line
}
