package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// clockTicks is the unit of CPU times in /proc: Linux has 100 ticks a second on all platforms that Go supports.
const clockTicks = 100

// usage is the resource usage of a group of processes.
type usage struct {
	processes int
	cpu       time.Duration
	// memory in KiB; shared pages are divided among the processes that share them.
	memory int
}

// report prints durations, resource usage and the paths of kubeconfigs and logs.
func (f *fleet) report(out io.Writer, prepared, total time.Duration) {
	fmt.Fprintf(out, "the fleet is ready after %s; certificates took %s; clusters, in parallel:\n", seconds(total), seconds(prepared))
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for index, c := range f.clusters {
		fmt.Fprintf(table, "  %s\t%s\t%s", c.name, f.versions[index], c.server())
		for _, phase := range f.phases[index] {
			fmt.Fprintf(table, "\t%s %s", phase.name, seconds(phase.duration))
		}
		fmt.Fprintln(table)
	}
	table.Flush()
	f.reportUsage(out)
	fmt.Fprintf(out, "  export KUBECONFIG=%s   # contexts: %s\n", f.allContexts(), strings.Join(f.names(), ", "))
	fmt.Fprintf(out, "  kubeconfigs of one cluster each: %s\n", f.kubeconfig(&cluster{name: "NAME"}))
	fmt.Fprintf(out, "  kubectl: %s\n", f.kubectl)
	fmt.Fprintf(out, "  logs: %s\n", f.directory+"/NAME/*.log")
}

func (f *fleet) names() []string {
	var names []string
	for _, c := range f.clusters {
		names = append(names, c.name)
	}
	return names
}

func (f *fleet) reportUsage(out io.Writer) {
	programs := map[string]usage{}
	var total usage
	for _, p := range f.supervisor.all() {
		processUsage, err := readUsage(p.command.Process.Pid)
		if err != nil {
			// This platform has no /proc.
			return
		}
		programs[p.name] = programs[p.name].add(processUsage)
		total = total.add(processUsage)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		fmt.Fprintln(table, programs[name].line(name))
	}
	fmt.Fprintln(table, total.line("total"))
	table.Flush()
}

func (u usage) add(other usage) usage {
	return usage{u.processes + other.processes, u.cpu + other.cpu, u.memory + other.memory}
}

func (u usage) line(name string) string {
	return fmt.Sprintf("  %s\t%d processes\t%s of CPU\t%d MiB\t", name, u.processes, seconds(u.cpu), u.memory/1024)
}

func readUsage(pid int) (usage, error) {
	folder := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(folder + "/stat")
	if err != nil {
		return usage{}, err
	}
	memory, err := os.ReadFile(folder + "/smaps_rollup")
	if err != nil {
		return usage{}, err
	}
	ticks, err := parseCPUTicks(string(stat))
	if err != nil {
		return usage{}, err
	}
	return usage{processes: 1, cpu: time.Duration(ticks) * time.Second / clockTicks, memory: parseProportionalMemory(string(memory))}, nil
}

// parseCPUTicks returns the CPU time of user and kernel from the text of /proc/PID/stat.
func parseCPUTicks(stat string) (int, error) {
	// The name of the program, in parentheses, may contain spaces. After it, field 3 is the first.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const user, system = 14 - 3, 15 - 3
	if len(fields) <= system {
		return 0, fmt.Errorf("unexpected text of a stat file: %q", stat)
	}
	u, err := strconv.Atoi(fields[user])
	if err != nil {
		return 0, err
	}
	s, err := strconv.Atoi(fields[system])
	return u + s, err
}

// parseProportionalMemory returns Pss in KiB from the text of /proc/PID/smaps_rollup.
func parseProportionalMemory(rollup string) int {
	for _, line := range strings.Split(rollup, "\n") {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "Pss:" {
			size, _ := strconv.Atoi(fields[1])
			return size
		}
	}
	return 0
}

func seconds(duration time.Duration) string { return fmt.Sprintf("%.1f s", duration.Seconds()) }
