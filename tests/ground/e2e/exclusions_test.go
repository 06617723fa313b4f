package e2e

import (
	"slices"
	"strings"
	"testing"
)

const exclusionsText = `# Comment
[sig-a] Webhook *
	starts a webhook server's container

[sig-b] reads the log
[sig-b] * a file *
	needs a program
	in a container
`

func TestExclusionsGiveReasons(t *testing.T) {
	exclusions, err := ParseExclusions(exclusionsText)
	if err != nil {
		t.Fatal(err)
	}
	for spec, want := range map[string]string{
		"[sig-a] Webhook denies":          "starts a webhook server's container",
		"[sig-b] reads the log":           "needs a program in a container",
		"[sig-b] writes a file of a pod":  "needs a program in a container",
		"[sig-b] reads the log of a pod":  "",
		"[sig-a] Other Webhook denies":    "",
		"[sig-b] writes a file":           "",
		"[sig-c] [sig-a] Webhook ignores": "",
	} {
		if reason, found := exclusions.Reason(spec); reason != want || found != (want != "") {
			t.Errorf("%s: %q, %v", spec, reason, found)
		}
	}
	if unused := exclusions.Unused([]string{"[sig-a] Webhook denies", "[sig-b] reads the log"}); !slices.Equal(unused, []string{"[sig-b] * a file *"}) {
		t.Errorf("unused: %q", unused)
	}
}

func TestParseExclusionsRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"\ta reason":          "without a spec",
		"[sig-a] one\n":       "no reason is given for [sig-a] one",
		"a\n\tr\n[sig-a] two": "no reason is given for [sig-a] two",
	} {
		if _, err := ParseExclusions(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"", "", true},
		{"*", "", true}, {"*", "abc", true}, {"a*", "abc", true}, {"*c", "abc", true}, {"*b", "abc", false},
		{"a*c", "abc", true}, {"a*b*c", "aXbYc", true}, {"a*b*c", "acb", false}, {"ab*ba", "aba", false},
	} {
		if got := matches(c.pattern, c.name); got != c.want {
			t.Errorf("matches(%q, %q) = %v", c.pattern, c.name, got)
		}
	}
}
