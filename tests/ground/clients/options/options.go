// Package options reads the command line of the program that checks an API with Go clients.
package options

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Checks lists all checks, in the order in which they run.
var Checks = []string{"manager", "helm", "informers"}

// Options of the program.
type Options struct {
	// Crowsnest is the program to start, or empty if Kubeconfig names a running control plane.
	Crowsnest  string
	Kubeconfig string
	// Member is empty if only the cluster of the kubeconfig is checked.
	Member   string
	Checks   []string
	Duration time.Duration
	// Rate is the number of writes per second to each cluster.
	Rate int
	Seed uint64
}

// Parse reads the arguments of the program.
func Parse(args []string) (Options, error) {
	var o Options
	var checks string
	flags := flag.NewFlagSet("clients", flag.ContinueOnError)
	flags.StringVar(&o.Crowsnest, "crowsnest", "", "`program` to start as \"crowsnest up\", and to restart during the check of informers")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig of a running control plane or cluster, in place of --crowsnest; nothing is restarted")
	flags.StringVar(&o.Member, "member", "", "with --kubeconfig, also check the proxy of this member and the fleet-wide proxy (default: only the cluster of the kubeconfig)")
	flags.StringVar(&checks, "checks", strings.Join(Checks, ","), "checks to run, separated by commas")
	flags.DurationVar(&o.Duration, "duration", 20*time.Second, "duration of the writes before the restart, and of those during and after it")
	flags.IntVar(&o.Rate, "rate", 60, "writes per second to each cluster")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the writes")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.Checks = strings.Split(checks, ",")
	for _, check := range o.Checks {
		if !slices.Contains(Checks, check) {
			return o, fmt.Errorf("--checks: unknown check %q; the checks are %s", check, strings.Join(Checks, ", "))
		}
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case (o.Crowsnest == "") == (o.Kubeconfig == ""):
		return o, errors.New("give either --crowsnest or --kubeconfig")
	case o.Crowsnest != "" && o.Member != "":
		return o, errors.New("--member is for --kubeconfig: the member of --crowsnest is simulated")
	case o.Rate < 1:
		return o, fmt.Errorf("--rate %d is less than 1", o.Rate)
	case o.Duration <= 0:
		return o, fmt.Errorf("--duration %v is not positive", o.Duration)
	}
	if o.Crowsnest != "" {
		o.Member = SimulatedMember
	}
	return o, nil
}

// SimulatedMember is the name of the member that --crowsnest starts.
const SimulatedMember = "member1"
