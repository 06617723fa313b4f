package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"crowsnest/ground/e2e"
)

func TestParseE2EOptions(t *testing.T) {
	o, err := parseE2EOptions([]string{"--kubeconfig", "/up/member1.kubeconfig", "--control-plane", "ours=/up/cp.kubeconfig", "--sig", "apps,cli"})
	if err != nil {
		t.Fatal(err)
	}
	want := []e2e.Cluster{
		{Name: "member1", Kubeconfig: "/up/member1.kubeconfig"},
		{Name: "ours", Kubeconfig: "/up/cp.kubeconfig", ControlPlane: true},
	}
	if !slices.Equal(o.clusters, want) || !slices.Equal(o.groups, []string{"apps", "cli"}) || o.version != defaultVersion {
		t.Errorf("unexpected options: %+v", o)
	}
	for _, args := range [][]string{
		{},
		{"--kubeconfig", "a", "--control-plane", "a=b"},
		{"--real", "--kubeconfig", "real=b"},
		{"--real", "--sig", "node"},
		{"--real", "--focus", "("},
		{"--real", "--procs", "0"},
		{"--real", "more"},
	} {
		if o, err := parseE2EOptions(args); err == nil {
			t.Errorf("%v: no error, but %+v", args, o)
		}
	}
}

func TestSpecsSelected(t *testing.T) {
	everywhere, err := e2e.ParseExclusions("a*\n\tr\n")
	if err != nil {
		t.Fatal(err)
	}
	controlPlane, err := e2e.ParseExclusions("b*\n\tr\n")
	if err != nil {
		t.Fatal(err)
	}
	idle, err := e2e.ParseExclusions("c two\n\tr\n")
	if err != nil {
		t.Fatal(err)
	}
	specs := []string{"a one", "b one", "c one", "c two"}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--kubeconfig", "f"}, []string{"b one", "c one", "c two"}},
		{[]string{"--control-plane", "f"}, []string{"c one", "c two"}},
		{[]string{"--kubeconfig", "f", "--focus", "one"}, []string{"b one", "c one"}},
		{[]string{"--kubeconfig", "f", "--excluded"}, []string{"a one"}},
		{[]string{"--control-plane", "f", "--excluded"}, []string{"a one", "b one"}},
	} {
		o, err := parseE2EOptions(c.args)
		if err != nil {
			t.Fatal(err)
		}
		if got := o.selectSpecs(o.clusters[0], specs, []e2e.Exclusions{everywhere, controlPlane, idle}); !slices.Equal(got, c.want) {
			t.Errorf("%v: specs %q, not %q", c.args, got, c.want)
		}
	}
}

func TestSpecsSelectedForIdleMembers(t *testing.T) {
	idle, err := e2e.ParseExclusions("b*\n\tr\n")
	if err != nil {
		t.Fatal(err)
	}
	o, err := parseE2EOptions([]string{"--real"})
	if err != nil {
		t.Fatal(err)
	}
	for isIdle, want := range map[bool][]string{true: {"a"}, false: {"a", "b"}} {
		if got := o.selectSpecs(e2e.Cluster{Idle: isIdle}, []string{"a", "b"}, []e2e.Exclusions{nil, nil, idle}); !slices.Equal(got, want) {
			t.Errorf("idle %v: specs %q, not %q", isIdle, got, want)
		}
	}
}

// TestExclusionsAreOfGroupsThatRun reads the lists themselves.
func TestExclusionsAreOfGroupsThatRun(t *testing.T) {
	b := &builder{source: "."}
	if _, err := b.readExclusions(); err != nil {
		t.Fatal(err)
	}
	for _, file := range exclusionFiles {
		text, err := os.ReadFile(filepath.Join("e2e", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(text), "\n") {
			if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "\t") {
				continue
			}
			runs := slices.ContainsFunc(e2e.SIGs, func(group string) bool { return strings.HasPrefix(line, "[sig-"+group+"] ") })
			if !runs {
				t.Errorf("%s: an entry for specs of a group that is never run: %s", file, line)
			}
		}
	}
}
