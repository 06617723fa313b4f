package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"crowsnest/ground/e2e"
)

const (
	// suiteProgram is the file name of Kubernetes' e2e suite in its build.
	suiteProgram = "e2e.test"
	// specsFile is the file with the names of the suite's specs, in the folder of its program.
	specsFile = "specs.txt"
	// realCluster is the name of the real member that `--real` starts.
	realCluster = "real"
)

// e2eOptions are the options of the command "e2e".
type e2eOptions struct {
	version  string
	clusters []e2e.Cluster
	real     bool
	groups   []string
	focus    *regexp.Regexp
	// onlyExcluded selects the excluded specs instead of the others.
	onlyExcluded bool
	processes    int
	limit        time.Duration
	folder       string
	kubectl      string
}

func parseE2EOptions(args []string) (e2eOptions, error) {
	var o e2eOptions
	var groups, focus string
	flags := flag.NewFlagSet("e2e", flag.ContinueOnError)
	cluster := func(controlPlane bool) func(string) error {
		return func(value string) error {
			name, path, found := strings.Cut(value, "=")
			if !found {
				name, path = strings.TrimSuffix(filepath.Base(value), ".kubeconfig"), value
			}
			path, err := filepath.Abs(path)
			o.clusters = append(o.clusters, e2e.Cluster{Name: name, Kubeconfig: path, ControlPlane: controlPlane})
			return err
		}
	}
	flags.StringVar(&o.version, "version", defaultVersion, "Kubernetes version of the suite")
	flags.Func("kubeconfig", "kubeconfig of a cluster, as `[NAME=]FILE`; may be repeated", cluster(false))
	flags.Func("control-plane", "kubeconfig of an API server without nodes and workload controllers, as `[NAME=]FILE`; may be repeated", cluster(true))
	flags.BoolVar(&o.real, "real", false, "start a real member and run the specs against it as well")
	flags.StringVar(&groups, "sig", strings.Join(e2e.SIGs, ","), "special interest groups, separated by commas")
	flags.StringVar(&focus, "focus", "", "run only specs whose names match this `regexp`")
	flags.BoolVar(&o.onlyExcluded, "excluded", false, "run only the specs that are excluded, to review the lists")
	flags.IntVar(&o.processes, "procs", 4, "number of specs that run at once")
	flags.DurationVar(&o.limit, "timeout", 10*time.Minute, "time that one spec may take")
	flags.StringVar(&o.folder, "report", "", "folder for the output of each spec (default a new one in the folder for temporary files)")
	flags.StringVar(&o.kubectl, "kubectl", "", "kubectl that specs run (default the one of --version, which is built with the servers)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.groups = strings.Split(groups, ",")
	var err error
	if o.focus, err = regexp.Compile(focus); err != nil {
		return o, fmt.Errorf("--focus: %w", err)
	}
	names := map[string]bool{realCluster: o.real}
	for _, cluster := range o.clusters {
		if names[cluster.Name] {
			return o, fmt.Errorf("two clusters are named %s", cluster.Name)
		}
		names[cluster.Name] = true
	}
	for _, group := range o.groups {
		if !slices.Contains(e2e.SIGs, group) {
			return o, fmt.Errorf("--sig: unknown group %q; the groups are %s", group, strings.Join(e2e.SIGs, ", "))
		}
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case len(o.clusters) == 0 && !o.real:
		return o, errors.New("no cluster: give --kubeconfig, --control-plane or --real")
	case o.processes < 1:
		return o, fmt.Errorf("--procs %d is less than 1", o.processes)
	}
	return o, nil
}

// runE2E runs the specs of the options against all clusters, prints a table and fails if a spec failed.
func runE2E(ctx context.Context, b *builder, o e2eOptions) error {
	lists, err := b.readExclusions()
	if err != nil {
		return err
	}
	suite, specs, err := b.buildSuite(ctx, o)
	if err != nil {
		return err
	}
	for _, list := range lists {
		if unused := list.Unused(e2e.ParseSpecs(specs, e2e.SIGs)); len(unused) > 0 {
			return fmt.Errorf("Kubernetes %s has no spec %q, which is excluded", o.version, unused[0])
		}
	}
	var names []string
	for _, cluster := range o.clusters {
		names = append(names, cluster.Name)
	}
	if o.real {
		names = append([]string{realCluster}, names...)
	}
	results := e2e.NewResults(names...)
	run := func(cluster e2e.Cluster) error {
		return runCluster(ctx, suite, cluster, o.selectSpecs(cluster, e2e.ParseSpecs(specs, o.groups), lists), results)
	}
	if o.real {
		err := b.withRealMember(ctx, o.version, func(kubeconfig string) error {
			return run(e2e.Cluster{Name: realCluster, Kubeconfig: kubeconfig, Idle: true})
		})
		if err != nil {
			return err
		}
	}
	for _, cluster := range o.clusters {
		if err := run(cluster); err != nil {
			return err
		}
	}
	if err := results.Write(os.Stdout); err != nil {
		return err
	}
	if failures := results.Failures(); failures > 0 {
		return fmt.Errorf("%d specs failed; their output is in %s", failures, suite.Folder)
	}
	return nil
}

// exclusionFiles list the specs that are never run, those that are not run against control planes, and those that are not run against
// the real members that this program starts.
var exclusionFiles = []string{"excluded.txt", "excluded-control-plane.txt", "excluded-real.txt"}

func (b *builder) readExclusions() ([]e2e.Exclusions, error) {
	var lists []e2e.Exclusions
	for _, file := range exclusionFiles {
		path := filepath.Join(b.source, "e2e", file)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		list, err := e2e.ParseExclusions(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		lists = append(lists, list)
	}
	return lists, nil
}

// buildSuite builds the e2e suite, and kubectl unless the options name one. It returns them with the list of all specs.
func (b *builder) buildSuite(ctx context.Context, o e2eOptions) (*e2e.Suite, string, error) {
	suite, err := b.suiteProduct(o.version)
	if err != nil {
		return nil, "", err
	}
	kubectl := o.kubectl
	if kubectl == "" {
		kubernetes, err := b.kubernetesProduct(o.version)
		if err != nil {
			return nil, "", err
		}
		servers, err := b.build(ctx, kubernetes)
		if err != nil {
			return nil, "", err
		}
		kubectl = filepath.Join(servers, "kubectl")
	}
	suiteFolder, err := b.build(ctx, suite)
	if err != nil {
		return nil, "", err
	}
	specs, err := os.ReadFile(filepath.Join(suiteFolder, specsFile))
	if err != nil {
		return nil, "", err
	}
	folder := o.folder
	if folder == "" {
		folder, err = os.MkdirTemp("", "crowsnest-e2e-")
	} else if folder, err = filepath.Abs(folder); err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	return &e2e.Suite{
		Program: filepath.Join(suiteFolder, suiteProgram), Kubectl: kubectl,
		Limit: o.limit, Processes: o.processes, Folder: folder,
	}, string(specs), err
}

// selectSpecs returns the specs to be run in a cluster. The lists are in the order of exclusionFiles.
func (o e2eOptions) selectSpecs(cluster e2e.Cluster, specs []string, lists []e2e.Exclusions) []string {
	lists = slices.Clone(lists)
	if !cluster.ControlPlane {
		lists[1] = nil
	}
	if !cluster.Idle {
		lists[2] = nil
	}
	return slices.DeleteFunc(slices.Clone(specs), func(spec string) bool {
		excluded := slices.ContainsFunc(lists, func(list e2e.Exclusions) bool { _, found := list.Reason(spec); return found })
		return !o.focus.MatchString(spec) || excluded != o.onlyExcluded
	})
}

// runCluster runs specs against a cluster. It reports outcomes immediately, and writes failures to a file.
func runCluster(ctx context.Context, suite *e2e.Suite, cluster e2e.Cluster, specs []string, results *e2e.Results) error {
	fmt.Fprintf(os.Stderr, "%s: %d specs; their output is in %s\n", cluster.Name, len(specs), filepath.Join(suite.Folder, cluster.Name))
	failures, err := os.Create(filepath.Join(suite.Folder, cluster.Name+"-failures.txt"))
	if err != nil {
		return err
	}
	defer failures.Close()
	return suite.Run(ctx, cluster, specs, func(outcome e2e.Outcome) {
		results.Add(cluster.Name, outcome)
		line := outcome.Line(cluster.Name)
		fmt.Fprintln(os.Stderr, line)
		if outcome.State != e2e.Passed {
			fmt.Fprintln(failures, line)
		}
	})
}
