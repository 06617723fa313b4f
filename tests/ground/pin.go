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

// suitePackage is Kubernetes' own e2e suite.
const suitePackage = "k8s.io/kubernetes/test/e2e"

// moduleKind is a module that `.ci/ground pin` writes for each Kubernetes version.
type moduleKind struct {
	// name of what the module builds
	name   string
	folder string
	// pin is the command that writes the module, without the version.
	pin      string
	packages []string
}

var (
	serversModule = moduleKind{name: "the servers", folder: "kubernetes", pin: "pin", packages: serverCommands}
	suiteModule   = moduleKind{name: "the e2e suite", folder: "e2e", pin: "pin --e2e", packages: []string{suitePackage}}
)

// text returns the go.mod of a module of this kind for a Kubernetes version, such as v1.36.3.
//
// upstream is the go.mod of k8s.io/kubernetes at that version. It replaces the staging modules with folders of the repository. Here they are
// replaced with the published modules, such as v0.36.3.
func (k moduleKind) text(version, upstream string) (string, error) {
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
	fmt.Fprintf(&text, "// Written by `.ci/ground %s %s`.\n", k.pin, version)
	fmt.Fprintf(&text, "module crowsnest/ground/%s\n\ngo %s\n\ntool (\n", k.folder, language)
	for _, command := range k.packages {
		fmt.Fprintf(&text, "\t%s\n", command)
	}
	fmt.Fprintf(&text, ")\n\nrequire k8s.io/kubernetes %s\n\nreplace (\n", version)
	for _, module := range staging {
		fmt.Fprintf(&text, "\t%s => %s v0.%s\n", module, module, minor)
	}
	text.WriteString(")\n")
	return text.String(), nil
}
