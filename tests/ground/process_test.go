package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

func TestLastLines(t *testing.T) {
	for _, c := range []struct {
		text  string
		count int
		want  string
	}{
		{"a\nb\nc\n", 2, "  b\n  c"},
		{"a\n", 2, "  a"},
		{"", 2, "  "},
	} {
		if got := lastLines([]byte(c.text), c.count); got != c.want {
			t.Errorf("%q: %q, not %q", c.text, got, c.want)
		}
	}
}

// The servers of a fleet are not built for unit tests, so sleep and sh are started in their place.
func TestSupervisorEndsAll(t *testing.T) {
	s, c := newSupervisor(), &cluster{name: "east", directory: t.TempDir()}
	first, err := s.run(c, server{name: "first", program: "/bin/sh", args: []string{"-c", "sleep 1000 & wait"}})
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.run(c, server{name: "second", program: "/bin/sleep", args: []string{"1000"}})
	if err != nil {
		t.Fatal(err)
	}
	s.stop()
	for _, p := range []*process{first, second} {
		if p.command.ProcessState.Success() {
			t.Errorf("%s: %s", p.name, p.command.ProcessState)
		}
	}
	if _, err := s.run(c, server{name: "third", program: "/bin/sleep", args: []string{"1000"}}); !errors.Is(err, errStopping) {
		t.Errorf("a server was started after the supervisor had stopped: %v", err)
	}
}

func TestFailureShowsTheLog(t *testing.T) {
	s, c := newSupervisor(), &cluster{name: "east", directory: t.TempDir()}
	defer s.stop()
	p, err := s.run(c, server{name: "etcd", program: "/bin/sh", args: []string{"-c", "echo no space left; exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	err = p.waitFor(t.Context(), func(context.Context) error { return errors.New("not ready") })
	if err == nil || !strings.Contains(err.Error(), "etcd of east ended (exit status 3)") || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("the error lacks the exit status or the log: %v", err)
	}
	if failed := <-s.failed; failed != p {
		t.Errorf("%s is reported as failed", failed.name)
	}
}

func TestChoosePorts(t *testing.T) {
	next := 0
	ports, err := choosePorts(3, func() int { next++; return next / 2 }, func(port int) bool { return port != 2 })
	if err != nil || len(ports) != 3 || ports[0] != 0 || ports[1] != 1 || ports[2] != 3 {
		t.Errorf("ports %v, %v", ports, err)
	}
	if ports, err := choosePorts(1, func() int { return 1 }, func(int) bool { return false }); err == nil {
		t.Errorf("ports %v, although none is free", ports)
	}
}

func TestUsage(t *testing.T) {
	ticks, err := parseCPUTicks("7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 39 19 8 0 1234 0 0")
	if err != nil || ticks != 300 {
		t.Errorf("CPU ticks %d, not 300; error %v", ticks, err)
	}
	if _, err := parseCPUTicks("7 (a) S"); err == nil {
		t.Error("no error for a truncated stat file")
	}
	if size := parseProportionalMemory("Rss:   200 kB\nPss:    150 kB\nPss_Dirty:   90 kB\n"); size != 150 {
		t.Errorf("proportional memory %d kB, not 150", size)
	}
	testProcess, err := readUsage(os.Getpid())
	if err == nil && testProcess.memory == 0 {
		t.Errorf("memory usage of the test process: %+v", testProcess)
	}
}

func TestCountReady(t *testing.T) {
	for _, c := range []struct {
		list string
		want int
	}{
		{`{"items": []}`, 0},
		{`{"items": [{"spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}]}`, 1},
		{`{"items": [{"spec": {}, "status": {"conditions": [{"type": "Ready", "status": "False"}]}}]}`, 0},
		{`{"items": [{"spec": {"taints": [{"key": "node.kubernetes.io/not-ready"}]}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}]}`, 0},
	} {
		if got, err := countReady([]byte(c.list)); err != nil || got != c.want {
			t.Errorf("%s: %d, %v", c.list, got, err)
		}
	}
}

func TestWithoutGroundVariables(t *testing.T) {
	got := withoutGroundVariables([]string{"PATH=/bin", "CROWSNEST_GROUND=/cache", "CROWSNEST_GROUND_SOURCE=/source", "CROWSNEST_DB=sqlite:"})
	if strings.Join(got, " ") != "PATH=/bin CROWSNEST_DB=sqlite:" {
		t.Errorf("variables %v", got)
	}
}
