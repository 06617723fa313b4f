package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// cleanUpTimeout limits the clean-up of an interrupted spec.
	cleanUpTimeout = time.Minute
	// batchSize is the number of specs of one process. The suite takes seconds of CPU time to start.
	batchSize = 8
)

// Cluster is a cluster in which specs are run.
type Cluster struct {
	Name       string
	Kubeconfig string
	// ControlPlane is true if the cluster has neither nodes nor workload controllers.
	ControlPlane bool
	// Idle is true if the cluster's pods run no processes: containers neither fail nor take any time.
	Idle bool
}

// Suite is a build of Kubernetes' e2e suite.
type Suite struct {
	Program, Kubectl string
	// Limit is the maximum duration of one spec.
	Limit time.Duration
	// Processes is the number of specs that run in parallel.
	Processes int
	// Folder contains the output and the reports of the processes.
	Folder string
}

// run is the state of one call of Suite.Run.
type run struct {
	*Suite
	cluster Cluster
	folder  string
	// processes is the number of processes that were started.
	processes atomic.Int64

	lock   sync.Mutex
	report func(Outcome)
}

// Run runs specs against a cluster and reports each outcome, one at a time. Serial specs run alone, after the others.
func (s *Suite) Run(ctx context.Context, cluster Cluster, specs []string, report func(Outcome)) error {
	r := &run{Suite: s, cluster: cluster, folder: filepath.Join(s.Folder, cluster.Name), report: report}
	if err := os.MkdirAll(r.folder, 0o755); err != nil {
		return err
	}
	var serial, parallel []string
	for _, spec := range specs {
		if isSerial(spec) {
			serial = append(serial, spec)
		} else {
			parallel = append(parallel, spec)
		}
	}
	r.runAll(ctx, parallel, s.Processes)
	r.runAll(ctx, serial, 1)
	return ctx.Err()
}

// runAll runs specs in a number of concurrent processes.
func (r *run) runAll(ctx context.Context, specs []string, processes int) {
	// With few specs, batches are smaller, so that no process is idle.
	size := max(1, min(batchSize, (len(specs)+processes-1)/processes))
	batches := make(chan []string, len(specs))
	for batch := range slices.Chunk(specs, size) {
		batches <- batch
	}
	close(batches)
	var workers sync.WaitGroup
	for range processes {
		workers.Go(func() {
			for batch := range batches {
				for len(batch) > 0 && ctx.Err() == nil {
					batch = r.runBatch(ctx, batch)
				}
			}
		})
	}
	workers.Wait()
}

// runBatch runs specs in one process, reports their outcomes and returns the remaining ones if the process ended early.
func (r *run) runBatch(ctx context.Context, specs []string) (remaining []string) {
	outcomes, err := r.runProcess(ctx, specs)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil && len(specs) > 1:
		// Each spec is run alone, to find the one that terminated the process.
		for _, spec := range specs {
			r.runBatch(ctx, []string{spec})
		}
		return nil
	case err != nil:
		outcomes = failAll(specs, err.Error())
	case len(outcomes) == 0:
		outcomes = failAll(specs, "the suite did not run the spec")
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, outcome := range outcomes {
		r.report(outcome)
	}
	return slices.DeleteFunc(slices.Clone(specs), func(spec string) bool {
		return slices.ContainsFunc(outcomes, func(outcome Outcome) bool { return outcome.Spec == spec })
	})
}

// runProcess runs specs in one process and returns the outcomes of those that were run. It interrupts the process when a spec takes too
// long.
func (r *run) runProcess(ctx context.Context, specs []string) ([]Outcome, error) {
	base := filepath.Join(r.folder, fmt.Sprintf("%03d-%s", r.processes.Add(1), fileName(specs[0])))
	log, err := os.Create(base + ".log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	specCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.AfterFunc(r.Limit, cancel)
	defer timer.Stop()
	command := exec.CommandContext(specCtx, r.Program, r.arguments(r.cluster, specs, base+".json")...)
	command.Dir, command.Stderr = r.folder, log
	command.Stdout = &progress{log: log, onSpecEnd: func() { timer.Reset(r.Limit) }}
	// An interrupted spec is cleaned up by Ginkgo.
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGINT) }
	command.WaitDelay = cleanUpTimeout
	// The report is more detailed than the exit code.
	runErr := command.Run()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(base + ".json")
	if err != nil {
		return nil, r.missingReport(specCtx, log.Name(), runErr, err)
	}
	outcomes, err := parseReport(text, specs)
	if err != nil {
		return nil, r.missingReport(specCtx, log.Name(), runErr, err)
	}
	return outcomes, nil
}

// missingReport returns the error for a process that wrote no report: runErr is the error of the process, cause the error of reading the
// report.
func (r *run) missingReport(specCtx context.Context, log string, runErr, cause error) error {
	if specCtx.Err() != nil {
		return fmt.Errorf("not finished after %v, and did not end when it was interrupted; see %s", r.Limit, log)
	}
	return fmt.Errorf("no report (%v; %w); see %s", runErr, cause, log)
}

// specEnd is the character that Ginkgo prints when a spec has passed or failed.
const specEnd = "•"

// progress writes the output of the suite to its log, and reports the end of each spec.
type progress struct {
	log       io.Writer
	onSpecEnd func()
}

func (p *progress) Write(output []byte) (int, error) {
	if bytes.Contains(output, []byte(specEnd)) {
		p.onSpecEnd()
	}
	return p.log.Write(output)
}

// arguments returns the arguments of the suite's program that run specs.
func (s *Suite) arguments(cluster Cluster, specs []string, report string) []string {
	var names []string
	for _, spec := range specs {
		names = append(names, regexp.QuoteMeta(spec))
	}
	arguments := []string{
		"--kubeconfig=" + cluster.Kubeconfig,
		"--kubectl-path=" + s.Kubectl,
		"--provider=skeleton",
		"--ginkgo.focus=(" + strings.Join(names, "|") + ")$",
		"--ginkgo.json-report=" + report,
		"--ginkgo.no-color",
		// The limit is for each spec, not for all.
		"--ginkgo.timeout=24h",
		// With -1, the suite does not wait for pods in the namespace kube-system, in which no pod runs.
		"--allowed-not-ready-nodes=-1",
		"--disable-log-dump",
		"--dump-logs-on-failure=false",
	}
	if cluster.ControlPlane {
		// With these flags, the suite waits neither for nodes nor for the ServiceAccount "default" of each namespace.
		arguments = append(arguments, "--num-nodes=1", "--e2e-verify-service-account=false")
	}
	return arguments
}

// maxNameLength is the maximum length of file names without number and extension, in bytes.
const maxNameLength = 200

// fileName returns the name of a spec in which dashes replace all characters except letters and digits.
func fileName(spec string) string {
	words := strings.FieldsFunc(strings.TrimSuffix(spec, " [Conformance]"), func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9')
	})
	name := strings.Join(words, "-")
	return name[:min(len(name), maxNameLength)]
}
