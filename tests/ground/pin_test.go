package main

import (
	"strings"
	"testing"
)

const upstreamModule = `module k8s.io/kubernetes

go 1.26.0

require (
	k8s.io/api v0.0.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/client-go => ./staging/src/k8s.io/client-go
	example.com/other => example.com/fork v1.0.0
)
`

func TestKubernetesModule(t *testing.T) {
	text, err := serversModule.text("v1.36.3", upstreamModule)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"go 1.26.0\n",
		"\tk8s.io/kubernetes/cmd/kube-apiserver\n",
		"require k8s.io/kubernetes v1.36.3\n",
		"\tk8s.io/api => k8s.io/api v0.36.3\n",
		"\tk8s.io/client-go => k8s.io/client-go v0.36.3\n",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no line %q in\n%s", line, text)
		}
	}
	if strings.Contains(text, "example.com") {
		t.Errorf("a replacement that is not a staging module was kept:\n%s", text)
	}
	if version, err := requiredVersion(text, "k8s.io/kubernetes"); err != nil || version != "v1.36.3" {
		t.Errorf("requiredVersion = %q, %v", version, err)
	}
}

func TestSuiteModule(t *testing.T) {
	text, err := suiteModule.text("v1.36.3", upstreamModule)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"// Written by `.ci/ground pin --e2e v1.36.3`.\n",
		"module crowsnest/ground/e2e\n",
		"\tk8s.io/kubernetes/test/e2e\n",
		"require k8s.io/kubernetes v1.36.3\n",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no line %q in\n%s", line, text)
		}
	}
	if strings.Contains(text, "kube-apiserver") {
		t.Errorf("the suite's module builds servers:\n%s", text)
	}
}

func TestKubernetesModuleErrors(t *testing.T) {
	for _, c := range []struct{ version, upstream string }{
		{"1.36.3", upstreamModule},
		{"v1.36", upstreamModule},
		{"v2.0.0", upstreamModule},
		{"v1.36.3", "module k8s.io/kubernetes\n\ngo 1.26.0\n"},
		{"v1.36.3", "replace k8s.io/api => ./staging/src/k8s.io/api\n"},
	} {
		if text, err := serversModule.text(c.version, c.upstream); err == nil {
			t.Errorf("%s: no error, but\n%s", c.version, text)
		}
	}
}

func TestVersionFlags(t *testing.T) {
	flags := versionFlags("v1.36.3")
	for _, value := range []string{"version.gitVersion=v1.36.3", "version.gitMajor=1", "version.gitMinor=36"} {
		if !strings.Contains(flags+" ", value+" ") {
			t.Errorf("no %s in %s", value, flags)
		}
	}
}

func TestOutputsOfCommands(t *testing.T) {
	for _, c := range []struct {
		product product
		outputs []string
	}{
		{etcdProduct(), []string{"/out/etcd"}},
		{product{programs: map[string]string{"a": "example.com/a", "b": "example.com/b"}}, []string{"/out/"}},
		{product{suite: "example.com/suite"}, []string{"/out/e2e.test"}},
	} {
		var outputs []string
		for _, arguments := range c.product.commands("/out") {
			for index, argument := range arguments {
				if argument == "-o" {
					outputs = append(outputs, arguments[index+1])
				}
			}
		}
		if strings.Join(outputs, " ") != strings.Join(c.outputs, " ") {
			t.Errorf("%v: outputs %v, not %v", c.product.programs, outputs, c.outputs)
		}
	}
}
