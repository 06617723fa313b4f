package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func testCluster(t *testing.T, index int) *cluster {
	t.Helper()
	c := &cluster{name: "east", index: index, nodes: 2, directory: filepath.Join(t.TempDir(), "east"), ports: ports{1, 2, 3, 4, 5, 6}}
	if err := c.prepare(); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCertificates(t *testing.T) {
	c := testCluster(t, 1)
	authority, err := os.ReadFile(c.path("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	server, err := tls.LoadX509KeyPair(c.path("server.crt"), c.path("server.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost", "kubernetes.default.svc", "10.65.0.1"} {
		if _, err := server.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	block, _ := pem.Decode(c.admin.client.certificate)
	admin, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	options := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := admin.Verify(options); err != nil {
		t.Error(err)
	}
	if !slices.Equal(admin.Subject.Organization, []string{"system:masters"}) {
		t.Errorf("groups %v", admin.Subject.Organization)
	}
	frontProxy, err := tls.LoadX509KeyPair(c.path("front-proxy.crt"), c.path("front-proxy.key"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := frontProxy.Leaf.Verify(options); err == nil {
		t.Error("the client CA has signed the front proxy's certificate, so any client could impersonate any user")
	}
}

func TestKubeconfigHasAContextForEachCluster(t *testing.T) {
	text, err := json.Marshal(newKubeconfig(access{name: "cp", server: "https://127.0.0.1:1"}, access{name: "east", authority: []byte("ca")}))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`"current-context":"cp"`,
		`"certificate-authority-data":"Y2E="`,
		`{"name":"east","context":{"cluster":"east","user":"east"}}`,
	} {
		if !strings.Contains(string(text), part) {
			t.Errorf("no %s in %s", part, text)
		}
	}
}

func TestControlPlaneDoesNotReconcileTemplates(t *testing.T) {
	for _, c := range []struct {
		index int
		want  bool
	}{{0, true}, {1, false}} {
		cluster := &cluster{name: "east", index: c.index}
		limited := slices.ContainsFunc(cluster.controllerManager().args, func(arg string) bool { return strings.HasPrefix(arg, "--controllers=") })
		pluginsDisabled := slices.ContainsFunc(cluster.apiServer().args, func(arg string) bool { return strings.HasPrefix(arg, "--disable-admission-plugins=") })
		if limited != c.want || pluginsDisabled != c.want {
			t.Errorf("cluster %d: controllers limited %v, admission plugins disabled %v", c.index, limited, pluginsDisabled)
		}
	}
}

func TestClustersShareNoAddresses(t *testing.T) {
	seen := map[string]bool{}
	for index := 0; index <= maximumMembers; index++ {
		c := &cluster{index: index}
		for _, addresses := range []string{c.serviceRange(), c.podRange()} {
			if seen[addresses] {
				t.Errorf("cluster %d: another cluster has the address range %s", index, addresses)
			}
			seen[addresses] = true
		}
	}
}

func TestPodsRunCommandsOnlyIfRequested(t *testing.T) {
	for _, exec := range []bool{false, true} {
		c := &cluster{name: "east", index: 1, directory: filepath.Join(t.TempDir(), "east"), ports: ports{1, 2, 3, 4, 5, 6}, exec: exec}
		if err := c.prepare(); err != nil {
			t.Fatal(err)
		}
		kwok := c.kwok()
		for _, arg := range []string{"--config=" + c.podsConfiguration(), "--node-ip=127.0.0.1", "--node-port=6", "--server-address=127.0.0.1:6"} {
			if slices.Contains(kwok.args, arg) != exec {
				t.Errorf("exec %v, but arguments %v", exec, kwok.args)
			}
		}
		if (kwok.health == "https://127.0.0.1:6/healthz") != exec || exists(c.containerLog()) != exec {
			t.Errorf("exec %v, but health %q, log %v", exec, kwok.health, exists(c.containerLog()))
		}
		if !exec {
			continue
		}
		text, err := os.ReadFile(c.podsConfiguration())
		if err != nil {
			t.Fatal(err)
		}
		var kinds []string
		for _, document := range strings.Split(string(text), "\n---\n") {
			var object struct{ Kind string }
			if err := json.Unmarshal([]byte(document), &object); err != nil {
				t.Fatalf("%v: %s", err, document)
			}
			kinds = append(kinds, object.Kind)
		}
		if !slices.Equal(kinds, []string{"ClusterExec", "ClusterLogs"}) {
			t.Errorf("kinds %v", kinds)
		}
	}
}

func TestNodeManifests(t *testing.T) {
	manifests := (&cluster{name: "east", nodes: 2}).nodeManifests()
	var names []string
	for _, manifest := range manifests {
		var node struct {
			Metadata struct{ Name string }
			Status   struct{ Capacity map[string]string }
		}
		if err := json.Unmarshal([]byte(manifest), &node); err != nil {
			t.Fatalf("%v: %s", err, manifest)
		}
		if node.Status.Capacity["pods"] == "" {
			t.Errorf("no capacity: %s", manifest)
		}
		names = append(names, node.Metadata.Name)
	}
	if !slices.Equal(names, []string{"east-node-1", "east-node-2"}) {
		t.Errorf("names %v", names)
	}
}
