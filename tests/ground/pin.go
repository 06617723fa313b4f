package main

import (
	"fmt"
	"strings"
)

// serverCommands are the packages of k8s.io/kubernetes that a cluster is built from.
var serverCommands = []string{
	"k8s.io/kubernetes/cmd/kube-apiserver",
	"k8s.io/kubernetes/cmd/kube-controller-manager",
	"k8s.io/kubernetes/cmd/kube-scheduler",
	"k8s.io/kubernetes/cmd/kubectl",
}

// kubernetesModule returns the go.mod of a module that builds the servers of a Kubernetes version, such as v1.36.3.
//
// upstream is the go.mod of k8s.io/kubernetes at that version. It replaces its staging modules by folders of its own repository;
// they are published as v0.36.3.
func kubernetesModule(version, upstream string) (string, error) {
	minor, ok := strings.CutPrefix(version, "v1.")
	if !ok || strings.Count(minor, ".") != 1 {
		return "", fmt.Errorf("version %q is not of the form v1.MINOR.PATCH", version)
	}
	language := ""
	var staging []string
	for _, line := range strings.Split(upstream, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 2 && fields[0] == "go" {
			language = fields[1]
		}
		if module, folder, found := strings.Cut(line, "=>"); found && strings.HasPrefix(strings.TrimSpace(folder), "./staging/") {
			staging = append(staging, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(module), "replace ")))
		}
	}
	if language == "" || len(staging) == 0 {
		return "", fmt.Errorf("the go.mod of k8s.io/kubernetes %s names no Go version or no staging modules", version)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "// Written by `.ci/ground pin %s`.\n", version)
	fmt.Fprintf(&text, "module crowsnest/ground/kubernetes\n\ngo %s\n\ntool (\n", language)
	for _, command := range serverCommands {
		fmt.Fprintf(&text, "\t%s\n", command)
	}
	fmt.Fprintf(&text, ")\n\nrequire k8s.io/kubernetes %s\n\nreplace (\n", version)
	for _, module := range staging {
		fmt.Fprintf(&text, "\t%s => %s v0.%s\n", module, module, minor)
	}
	text.WriteString(")\n")
	return text.String(), nil
}
