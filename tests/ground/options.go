package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// options of the command "up".
type options struct {
	// names of the members
	names        []string
	controlPlane bool
	nodes        int
	// cpu and memory of a node; members take the values in turn
	cpu, memory []string
	// stages is a file with further kwok stages, or empty.
	stages string
	// exec lets pods of members run commands on this machine.
	exec bool
	// auditPolicy is a file with the audit policy of all API servers; without it they write no audit log.
	auditPolicy string
	versions    []string
	directory   string
	detach      bool
	command     []string
}

// validName matches the names of clusters, which are also names of folders and parts of nodes' names.
var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// maximumMembers keeps the address ranges of members apart: each has a range of Services and of pods in 10.0.0.0/8.
const maximumMembers = 60

func parseOptions(args []string) (options, error) {
	var o options
	var members int
	var prefix, names, cpu, memory, versions string
	flags := flag.NewFlagSet("up", flag.ContinueOnError)
	flags.BoolVar(&o.controlPlane, "control-plane", true, "start a control plane in addition to the members")
	flags.IntVar(&members, "members", 2, "number of members")
	flags.IntVar(&o.nodes, "nodes", 3, "simulated nodes of each member; with 0, pods stay pending")
	flags.StringVar(&cpu, "cpu", "8", "CPUs of each node, separated by commas: members take them in turn")
	flags.StringVar(&memory, "memory", "32Gi", "memory of each node, separated by commas: members take them in turn")
	flags.StringVar(&o.stages, "stages", "", "file with kwok stages in addition to those that make all pods ready")
	flags.BoolVar(&o.exec, "exec", false, "run commands of members' pods (kubectl exec) on this machine, as the user of this program, and give all pods of a member one log")
	flags.StringVar(&prefix, "prefix", "member", "beginning of members' names, which end with their number")
	flags.StringVar(&names, "names", "", "names of the members, separated by commas, in place of --members and --prefix")
	flags.StringVar(&o.auditPolicy, "audit-policy-file", "", "audit policy of all API servers, which then write the file audit.log in their folder")
	flags.StringVar(&versions, "kubernetes", defaultVersion, "Kubernetes versions, separated by commas: the control plane has the first; members take them in turn")
	flags.StringVar(&o.directory, "dir", "", "folder of the fleet's state, which must not exist (default a new one in the folder for temporary files)")
	flags.BoolVar(&o.detach, "detach", false, "return once the fleet can be used, and leave it running until `.ci/ground down DIR`")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.command = flags.Args()
	o.versions, o.cpu, o.memory = strings.Split(versions, ","), strings.Split(cpu, ","), strings.Split(memory, ",")
	if members < 0 || members > maximumMembers {
		return o, fmt.Errorf("--members %d is not between 0 and %d", members, maximumMembers)
	}
	if o.names = splitNames(names); names == "" {
		for member := 1; member <= members; member++ {
			o.names = append(o.names, fmt.Sprintf("%s%d", prefix, member))
		}
	}
	for index, name := range o.names {
		if !validName.MatchString(name) || name == controlPlaneName || slices.Contains(o.names[:index], name) {
			return o, fmt.Errorf("member name %q: names must be distinct DNS labels other than %q", name, controlPlaneName)
		}
	}
	// Servers run in folders of their own.
	for _, file := range []*string{&o.stages, &o.auditPolicy} {
		if *file == "" {
			continue
		}
		var err error
		if *file, err = filepath.Abs(*file); err != nil {
			return o, err
		}
		if _, err = os.Stat(*file); err != nil {
			return o, err
		}
	}
	switch {
	case len(o.names) > maximumMembers:
		return o, fmt.Errorf("--names has %d names, more than %d", len(o.names), maximumMembers)
	case !o.controlPlane && len(o.names) == 0:
		return o, errors.New("a fleet without members needs a control plane")
	case o.nodes < 0:
		return o, fmt.Errorf("--nodes %d is negative", o.nodes)
	case o.detach && len(o.command) > 0:
		return o, fmt.Errorf("--detach takes no command: %s", strings.Join(o.command, " "))
	}
	return o, nil
}

// version returns the Kubernetes version of the cluster with this index: 0 for the control plane.
func (o options) version(index int) string {
	if index == 0 {
		return o.versions[0]
	}
	return valueOfMember(o.versions, index)
}

// valueOfMember returns the value that the member with this index takes. Indices of members count from 1.
func valueOfMember(values []string, index int) string { return values[(index-1)%len(values)] }

// indices returns the indices of the clusters: 0 for the control plane, members from 1.
func (o options) indices() []int {
	var indices []int
	if o.controlPlane {
		indices = append(indices, 0)
	}
	for member := range o.names {
		indices = append(indices, member+1)
	}
	return indices
}

// name returns the name of the cluster with this index.
func (o options) name(index int) string {
	if index == 0 {
		return controlPlaneName
	}
	return o.names[index-1]
}

// splitNames splits a list of names; an empty list has none.
func splitNames(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}
