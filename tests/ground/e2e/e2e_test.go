package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseSpecs(t *testing.T) {
	listing := `The following spec names can be used with 'ginkgo run --focus/skip':
    k8s.io/kubernetes@v1.36.3/test/e2e/apps/job.go:12: [sig-apps] Job should run: to its end [Conformance]
    k8s.io/kubernetes@v1.36.3/test/e2e/apps/job.go:12: [sig-apps] Job should fail
    k8s.io/kubernetes@v1.36.3/test/e2e/node/pods.go:12: [sig-node] Pods should run [Conformance]
    test/e2e/auth/a.go:1: [sig-auth] Accounts [Serial] should exist [Conformance]
    test/e2e/auth/a.go:1: [sig-auth] Accounts [Serial] should exist [Conformance]
`
	want := []string{"[sig-apps] Job should run: to its end [Conformance]", "[sig-auth] Accounts [Serial] should exist [Conformance]"}
	if got := ParseSpecs(listing, SIGs); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := ParseSpecs(listing, []string{"auth"}); !slices.Equal(got, want[1:]) {
		t.Errorf("%q", got)
	}
}

func TestParseReport(t *testing.T) {
	specs := []string{"[sig-a] A one", "[sig-a] A two"}
	spec := func(name, state, message string) string {
		failure := ""
		if message != "" {
			failure = fmt.Sprintf(`, "Failure": {"Message": %q}`, message)
		}
		return fmt.Sprintf(`{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-a] A", ""], "LeafNodeText": %q, "State": %q%s}`, name, state, failure)
	}
	setUp := `{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no node"}}`
	for _, c := range []struct {
		name    string
		reports []string
		want    string
	}{
		{"both run", []string{spec("one", "passed", ""), spec("two", "failed", "no pod")}, "one passed; two FAILED no pod"},
		{"a panic", []string{spec("one", "panicked", "nil")}, "one FAILED nil"},
		{"an interruption", []string{spec("one", "interrupted", "by user"), spec("two", "skipped", "")}, "one TIMEOUT by user"},
		{"out of focus", []string{spec("one", "passed", ""), spec("three", "passed", "")}, "one passed"},
		{"a spec that skips itself", []string{spec("two", "skipped", "needs two nodes")}, "two SKIPPED needs two nodes"},
		{"a failure of the set-up", []string{setUp, spec("one", "skipped", "")}, "one FAILED no node; two FAILED no node"},
	} {
		outcomes, err := parseReport([]byte(`[{"SpecReports": [`+strings.Join(c.reports, ",")+`]}]`), specs)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var got []string
		for _, o := range outcomes {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s", strings.TrimPrefix(o.Spec, "[sig-a] A "), o.State, o.Message)))
		}
		if strings.Join(got, "; ") != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	if outcomes, err := parseReport(nil, specs); err == nil {
		t.Errorf("an empty report: %v, no error", outcomes)
	}
}

const (
	limit = 2 * time.Second
	// shortOfLimit lets two specs of one process take longer together than the limit of each.
	shortOfLimit = limit * 3 / 5
)

// fakeSuite is run by the test binary in place of Kubernetes' suite. The name of a spec determines its behavior.
func fakeSuite(args []string) {
	flags := map[string]string{}
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		flags[name] = value
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	var reports []string
	state := "passed"
	for _, name := range strings.Split(strings.Trim(flags["ginkgo.focus"], "()$"), "|") {
		name = strings.ReplaceAll(name, `\`, "")
		switch {
		case state == "interrupted":
			state = "skipped"
		case strings.Contains(name, "takes a while"):
			time.Sleep(shortOfLimit)
		case strings.Contains(name, "crashes"):
			os.Exit(3)
		case strings.Contains(name, "hangs"):
			<-interrupted
			state = "interrupted"
		}
		reported := state
		if state == "passed" && strings.Contains(name, "fails") {
			reported = "failed"
		}
		reports = append(reports, fmt.Sprintf(`{"LeafNodeType": "It", "LeafNodeText": %q, "State": %q}`, name, reported))
		fmt.Print(specEnd)
	}
	text := `[{"SpecReports": [` + strings.Join(reports, ",") + `]}]`
	if err := os.WriteFile(flags["ginkgo.json-report"], []byte(text), 0o644); err != nil {
		os.Exit(5)
	}
}

// TestMain runs fakeSuite if Suite.Run has started this binary.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "--provider=skeleton") {
		fakeSuite(os.Args[1:])
		return
	}
	os.Exit(m.Run())
}

func TestRun(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &Suite{Program: program, Kubectl: "kubectl", Limit: limit, Processes: 2, Folder: t.TempDir()}
	var order []string
	states := map[string]State{}
	collect := func(outcome Outcome) {
		order = append(order, outcome.Spec)
		states[outcome.Spec] = outcome.State
	}
	want := map[string]State{
		"[sig-a] one [Serial]":      Passed,
		"[sig-a] one takes a while": Passed,
		"[sig-a] two takes a while": Passed,
		"[sig-a] fails":             Failed,
		"[sig-a] passes":            Passed,
		"[sig-a] crashes":           Failed,
		"[sig-a] hangs":             TimedOut,
		"[sig-a] is after it":       Passed,
	}
	specs := []string{"[sig-a] one [Serial]", "[sig-a] one takes a while", "[sig-a] two takes a while", "[sig-a] fails", "[sig-a] passes", "[sig-a] crashes", "[sig-a] hangs", "[sig-a] is after it"}
	if err := s.Run(context.Background(), Cluster{Name: "east", Kubeconfig: "east.kubeconfig"}, specs, collect); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(states, want) || len(order) != len(specs) {
		t.Errorf("%v, not %v", states, want)
	}
	if order[len(order)-1] != specs[0] {
		t.Errorf("the serial spec was not the last: %q", order)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s := &Suite{Program: "/does/not/exist", Limit: time.Second, Processes: 1, Folder: t.TempDir()}
	if err := s.Run(ctx, Cluster{Name: "east"}, []string{"[sig-a] one"}, func(Outcome) {}); err == nil {
		t.Error("no error")
	}
}

func TestArguments(t *testing.T) {
	s := &Suite{Kubectl: "/bin/kubectl"}
	plain := s.arguments(Cluster{Kubeconfig: "east"}, []string{"[sig-a] one. [Conformance]", "b"}, "out.json")
	if !slices.Contains(plain, `--ginkgo.focus=(\[sig-a\] one\. \[Conformance\]|b)$`) {
		t.Errorf("the focus is not these specs alone: %q", plain)
	}
	for _, controlPlane := range []bool{false, true} {
		got := s.arguments(Cluster{Kubeconfig: "east", ControlPlane: controlPlane}, []string{"a"}, "out.json")
		if slices.Contains(got, "--num-nodes=1") != controlPlane {
			t.Errorf("control plane %v: %q", controlPlane, got)
		}
	}
}

func TestFileName(t *testing.T) {
	if got := fileName("[sig-apps] Job should run: to its end [Conformance]"); got != "sig-apps-Job-should-run-to-its-end" {
		t.Errorf("%q", got)
	}
	if got := fileName(strings.Repeat("a", 500)); len(got) != maxNameLength {
		t.Errorf("%d bytes", len(got))
	}
}

func TestResults(t *testing.T) {
	r := NewResults("real", "ours")
	r.Add("real", Outcome{Spec: "[sig-a] one", State: Passed})
	r.Add("ours", Outcome{Spec: "[sig-a] one", State: Failed})
	r.Add("real", Outcome{Spec: "[sig-a] two", State: Passed})
	var out strings.Builder
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	want := `real     ours     spec
passed   FAILED   [sig-a] one
passed   -        [sig-a] two
real: 2 of 2 specs passed
ours: 0 of 1 specs passed
`
	if out.String() != want || r.Failures() != 1 {
		t.Errorf("%d failures\n%s", r.Failures(), out.String())
	}
	line := Outcome{Spec: "[sig-a] one", State: Failed, Message: "\nfirst\n\nsecond\n", Duration: 2 * time.Second}.Line("ours")
	if line != "FAILED     2 s  ours  [sig-a] one\n    first\n    second" {
		t.Errorf("%q", line)
	}
}
