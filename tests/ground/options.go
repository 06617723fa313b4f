package main

import (
	"flag"
	"fmt"
	"strings"
)

// options of the command "up".
type options struct {
	members   int
	nodes     int
	prefix    string
	versions  []string
	directory string
	detach    bool
	command   []string
}

// maximumMembers keeps the address ranges of members apart: each has a range of Services and of pods in 10.0.0.0/8.
const maximumMembers = 60

func parseOptions(args []string) (options, error) {
	var o options
	var versions string
	flags := flag.NewFlagSet("up", flag.ContinueOnError)
	flags.IntVar(&o.members, "members", 2, "number of members beside the control plane")
	flags.IntVar(&o.nodes, "nodes", 3, "simulated nodes of each member; with 0, pods stay pending")
	flags.StringVar(&o.prefix, "prefix", "member", "beginning of members' names")
	flags.StringVar(&versions, "kubernetes", defaultVersion, "Kubernetes versions, separated by commas: the control plane has the first; members take them in turn")
	flags.StringVar(&o.directory, "dir", "", "folder of the fleet's state, which must not exist (default a new one in the folder for temporary files)")
	flags.BoolVar(&o.detach, "detach", false, "return once the fleet can be used, and leave it running until `.ci/ground down DIR`")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.command = flags.Args()
	o.versions = strings.Split(versions, ",")
	switch {
	case o.members < 0 || o.members > maximumMembers:
		return o, fmt.Errorf("--members %d is not between 0 and %d", o.members, maximumMembers)
	case o.nodes < 0:
		return o, fmt.Errorf("--nodes %d is negative", o.nodes)
	case o.detach && len(o.command) > 0:
		return o, fmt.Errorf("--detach takes no command: %s", strings.Join(o.command, " "))
	}
	return o, nil
}

// version is the Kubernetes version of the cluster with this index: 0 for the control plane.
func (o options) version(index int) string {
	if index == 0 {
		return o.versions[0]
	}
	return o.versions[(index-1)%len(o.versions)]
}

// name of the cluster with this index.
func (o options) name(index int) string {
	if index == 0 {
		return controlPlaneName
	}
	return fmt.Sprintf("%s%d", o.prefix, index)
}
