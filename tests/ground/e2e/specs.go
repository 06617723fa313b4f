// Package e2e runs conformance specs of Kubernetes' own e2e suite, a few in each process, and compares their outcomes in several
// clusters.
package e2e

import (
	"regexp"
	"slices"
	"strings"
)

// SIGs are the special interest groups whose conformance specs are run. Most of their specs do not need a process in a container.
var SIGs = []string{"api-machinery", "apps", "architecture", "auth", "cli", "instrumentation", "scheduling"}

// location precedes a spec's name in the output of `e2e.test --list-tests`, such as "test/e2e/apps/job.go:12: ".
var location = regexp.MustCompile(`^[^ ]+\.go:[0-9]+: `)

// ParseSpecs returns the conformance specs of the groups, in order, from the output of `e2e.test --list-tests`.
func ParseSpecs(listing string, groups []string) []string {
	var specs []string
	for _, line := range strings.Split(listing, "\n") {
		name := location.ReplaceAllString(strings.TrimSpace(line), "")
		if slices.Contains(groups, group(name)) && strings.Contains(name, "[Conformance]") {
			specs = append(specs, name)
		}
	}
	slices.Sort(specs)
	return slices.Compact(specs)
}

// group returns the special interest group of a spec, such as "apps" of "[sig-apps] Job should …"; empty if the name has none.
func group(spec string) string {
	name, found := strings.CutPrefix(spec, "[sig-")
	name, _, closed := strings.Cut(name, "]")
	if !found || !closed {
		return ""
	}
	return name
}

// isSerial reports whether a spec must run alone, because it changes state that other specs depend on.
func isSerial(spec string) bool { return strings.Contains(spec, "[Serial]") }
