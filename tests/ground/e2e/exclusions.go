package e2e

import (
	"fmt"
	"strings"
)

// Exclusions are the specs that are not run, each with the reason.
type Exclusions []exclusion

type exclusion struct {
	pattern, reason string
}

// ParseExclusions reads a list of exclusions.
//
// A line that is not indented is the name of a spec, in which each `*` stands for any text. The indented lines after it are the reason.
// Several names in a row share the reason that follows them. Empty lines and lines that begin with `#` are skipped.
func ParseExclusions(text string) (Exclusions, error) {
	var exclusions Exclusions
	// unexplained is the index of the first name that has no reason yet.
	unexplained := 0
	explained := false
	for number, line := range strings.Split(text, "\n") {
		content := strings.TrimSpace(line)
		indented := line != strings.TrimLeft(line, " \t")
		switch {
		case content == "" || strings.HasPrefix(line, "#"):
		case !indented:
			if explained {
				unexplained, explained = len(exclusions), false
			}
			exclusions = append(exclusions, exclusion{pattern: content})
		case len(exclusions) == 0:
			return nil, fmt.Errorf("line %d: a reason without a spec: %s", number+1, content)
		default:
			explained = true
			for index := unexplained; index < len(exclusions); index++ {
				exclusions[index].reason = strings.TrimSpace(exclusions[index].reason + " " + content)
			}
		}
	}
	if len(exclusions) > 0 && !explained {
		return nil, fmt.Errorf("no reason is given for %s", exclusions[len(exclusions)-1].pattern)
	}
	return exclusions, nil
}

// Reason returns why a spec is not run, and false if it is run.
func (e Exclusions) Reason(spec string) (string, bool) {
	for _, exclusion := range e {
		if matches(exclusion.pattern, spec) {
			return exclusion.reason, true
		}
	}
	return "", false
}

// Unused returns the patterns that match none of the specs.
func (e Exclusions) Unused(specs []string) []string {
	var unused []string
	for _, exclusion := range e {
		used := false
		for _, spec := range specs {
			used = used || matches(exclusion.pattern, spec)
		}
		if !used {
			unused = append(unused, exclusion.pattern)
		}
	}
	return unused
}

// matches reports whether a name matches a pattern, in which each `*` stands for any text.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	name, found := strings.CutPrefix(name, parts[0])
	if !found || len(parts) == 1 {
		return found && name == ""
	}
	for _, part := range parts[1 : len(parts)-1] {
		index := strings.Index(name, part)
		if index < 0 {
			return false
		}
		name = name[index+len(part):]
	}
	return strings.HasSuffix(name, parts[len(parts)-1])
}
