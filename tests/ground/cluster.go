package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// controlPlaneName is the name of the control plane's context and kubeconfig.
const controlPlaneName = "cp"

// controlPlaneControllers are the controllers of kube-controller-manager that a Karmada control plane runs: its Deployments and Pods are
// templates, from which nothing may be created there.
const controlPlaneControllers = "namespace-controller,garbage-collector-controller,serviceaccount-token-controller," +
	"ttl-after-finished-controller,bootstrap-signer-controller,token-cleaner-controller,certificatesigningrequest-cleaner-controller," +
	"certificatesigningrequest-signing-controller,clusterrole-aggregation-controller"

// Users of a cluster, by the names of their kubeconfigs.
const (
	adminUser             = "admin"
	controllerManagerUser = "kube-controller-manager"
	schedulerUser         = "kube-scheduler"
	nodesUser             = "kwok"
)

// programs are the folders of built programs that a cluster runs.
type programs struct {
	etcd, kubernetes, kwok string
}

// ports of a cluster's servers on the loopback address. All nodes have one kubelet, which is kwok.
type ports struct {
	etcd, etcdPeer, apiServer, controllerManager, scheduler, kubelet int
}

// cluster is a control plane or a member, with the folders, addresses and arguments of its servers.
type cluster struct {
	name string
	// index is 0 for the control plane, and counts members from 1. It determines the cluster's address ranges.
	index int
	// nodes is the number of simulated nodes. The control plane has none.
	nodes int
	// nodeCPU and nodeMemory are the capacity of each node.
	nodeCPU, nodeMemory string
	// stages is a file with further kwok stages, or empty.
	stages string
	// exec lets pods run commands on this machine, and gives all pods one log. Without it, nodes have no address.
	exec bool
	// auditPolicy is the file of the API server's audit policy; without it there is no audit log.
	auditPolicy string
	directory   string
	programs    programs
	ports       ports
	// admin is the access of the cluster administrator, which prepare sets.
	admin access
}

func (c *cluster) isControlPlane() bool { return c.index == 0 }

func (c *cluster) server() string { return fmt.Sprintf("https://127.0.0.1:%d", c.ports.apiServer) }

func (c *cluster) path(name string) string { return filepath.Join(c.directory, name) }

// serviceRange is the range of the cluster's Services; no two clusters of a fleet share one.
func (c *cluster) serviceRange() string { return fmt.Sprintf("10.%d.0.0/16", 64+c.index) }

// podRange is the range of the cluster's pods.
func (c *cluster) podRange() string { return fmt.Sprintf("10.%d.0.1/16", 128+c.index) }

// prepare writes the keys, certificates and kubeconfigs of the cluster.
func (c *cluster) prepare() error {
	if err := os.MkdirAll(c.directory, 0o700); err != nil {
		return err
	}
	clients, err := newAuthority(c.name)
	if err != nil {
		return err
	}
	frontProxies, err := newAuthority(c.name + "-front-proxy")
	if err != nil {
		return err
	}
	server, err := clients.sign(subject{user: "kube-apiserver", hosts: []string{
		"127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", fmt.Sprintf("10.%d.0.1", 64+c.index),
	}})
	if err != nil {
		return err
	}
	frontProxy, err := frontProxies.sign(subject{user: "front-proxy-client"})
	if err != nil {
		return err
	}
	for name, pair := range map[string]keyPair{
		"ca": clients.pem, "front-proxy-ca": frontProxies.pem, "server": server, "front-proxy": frontProxy,
	} {
		if err := pair.write(c.path(name)); err != nil {
			return err
		}
	}
	// kube-apiserver derives the public key from the private key that signs tokens.
	tokens, err := newAuthority("service-accounts")
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.path("service-accounts.key"), tokens.pem.key, 0o600); err != nil {
		return err
	}
	users := map[string]subject{
		// Karmada's installation uses this name for its administrator, and grants it clusters/proxy.
		adminUser:             {user: "system:admin", group: "system:masters"},
		controllerManagerUser: {user: "system:kube-controller-manager"},
		schedulerUser:         {user: "system:kube-scheduler"},
		nodesUser:             {user: "kwok", group: "system:masters"},
	}
	for name, user := range users {
		client, err := clients.sign(user)
		if err != nil {
			return err
		}
		a := access{name: c.name, server: c.server(), authority: clients.pem.certificate, client: client}
		if name == adminUser {
			c.admin = a
		}
		if err := newKubeconfig(a).write(c.path(name + ".kubeconfig")); err != nil {
			return err
		}
	}
	if c.exec {
		return c.writePodsConfiguration()
	}
	return nil
}

// podsConfiguration is the file with kwok's configuration of commands and logs of pods.
func (c *cluster) podsConfiguration() string { return c.path("pods.yaml") }

// containerLog is the file with the log of all pods, in the format of container runtimes: time, stream, F for a full line, text. It has a
// folder of its own, because kwok watches the folder for a client that follows the log.
func (c *cluster) containerLog() string { return filepath.Join(c.path("pods"), "container.log") }

// writePodsConfiguration writes the log of all pods, with its first line, and the configuration that lets kwok serve the log and run commands
// of pods as processes on this machine.
func (c *cluster) writePodsConfiguration() error {
	if err := os.Mkdir(c.path("pods"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(c.containerLog(), []byte("2026-01-01T00:00:00Z stdout F started\n"), 0o600); err != nil {
		return err
	}
	configuration := fmt.Sprintf(`{"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "ClusterExec", "metadata": {"name": "commands"},
  "spec": {"execs": [{"local": {"workDir": %[1]q, "envs": [
    {"name": "CLUSTER", "value": %[2]q}, {"name": "CONTAINER_LOG", "value": %[3]q}]}}]}}
---
{"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "ClusterLogs", "metadata": {"name": "log"}, "spec": {"logs": [{"logsFile": %[3]q}]}}
`, c.path("pods"), c.name, c.containerLog())
	return os.WriteFile(c.podsConfiguration(), []byte(configuration), 0o600)
}

// server is one process of a cluster.
type server struct {
	name    string
	program string
	args    []string
	// health is the URL that returns 200 once the server is ready; empty if it serves none.
	health string
}

func (c *cluster) etcd() server {
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", c.ports.etcd), fmt.Sprintf("http://127.0.0.1:%d", c.ports.etcdPeer)
	return server{
		name: "etcd", program: filepath.Join(c.programs.etcd, "etcd"), health: client + "/health",
		args: []string{
			"--name=" + c.name,
			"--data-dir=" + c.path("etcd"),
			"--listen-client-urls=" + client,
			"--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer,
			"--initial-advertise-peer-urls=" + peer,
			"--initial-cluster=" + c.name + "=" + peer,
			// The data is deleted with the fleet, so it does not have to survive a crash of the machine.
			"--unsafe-no-fsync",
			"--log-level=warn",
		},
	}
}

func (c *cluster) apiServer() server {
	args := []string{
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", c.ports.apiServer),
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", c.ports.etcd),
		"--cert-dir=" + c.path("certificates"),
		"--tls-cert-file=" + c.path("server.crt"),
		"--tls-private-key-file=" + c.path("server.key"),
		"--client-ca-file=" + c.path("ca.crt"),
		"--authorization-mode=Node,RBAC",
		"--allow-privileged=true",
		"--enable-bootstrap-token-auth=true",
		// Endpoints must not have loopback addresses, so the Service "kubernetes" gets none.
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + c.serviceRange(),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path("service-accounts.key"),
		"--service-account-signing-key-file=" + c.path("service-accounts.key"),
		"--requestheader-client-ca-file=" + c.path("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.path("front-proxy.crt"),
		"--proxy-client-key-file=" + c.path("front-proxy.key"),
	}
	if c.isControlPlane() {
		// As in a Karmada control plane, these plugins are disabled: they would change Pods and volumes, which are templates there.
		args = append(args, "--disable-admission-plugins=StorageObjectInUseProtection,ServiceAccount")
	}
	if c.auditPolicy != "" {
		args = append(args, "--audit-policy-file="+c.auditPolicy, "--audit-log-path="+c.path("audit.log"))
	}
	return server{
		name: "kube-apiserver", program: filepath.Join(c.programs.kubernetes, "kube-apiserver"), args: args, health: c.server() + "/readyz",
	}
}

func (c *cluster) controllerManager() server {
	kubeconfig := c.path(controllerManagerUser + ".kubeconfig")
	args := append(c.servingFlags(kubeconfig, c.ports.controllerManager),
		"--cluster-name="+c.name,
		"--use-service-account-credentials=true",
		"--root-ca-file="+c.path("ca.crt"),
		"--service-account-private-key-file="+c.path("service-accounts.key"),
		"--cluster-signing-cert-file="+c.path("ca.crt"),
		"--cluster-signing-key-file="+c.path("ca.key"),
	)
	if c.isControlPlane() {
		args = append(args, "--controllers="+controlPlaneControllers)
	}
	return server{
		name: "kube-controller-manager", program: filepath.Join(c.programs.kubernetes, "kube-controller-manager"), args: args,
		health: fmt.Sprintf("https://127.0.0.1:%d/healthz", c.ports.controllerManager),
	}
}

func (c *cluster) scheduler() server {
	return server{
		name: "kube-scheduler", program: filepath.Join(c.programs.kubernetes, "kube-scheduler"),
		args:   c.servingFlags(c.path(schedulerUser+".kubeconfig"), c.ports.scheduler),
		health: fmt.Sprintf("https://127.0.0.1:%d/readyz", c.ports.scheduler),
	}
}

// kwok simulates the kubelets of all nodes of a member. API servers of all versions use the only address of a node, its internal IP; they do
// not verify the certificate of kubelets unless --kubelet-certificate-authority is set.
func (c *cluster) kwok() server {
	args := []string{
		"--kubeconfig=" + c.path(nodesUser+".kubeconfig"),
		"--config=" + filepath.Join(c.programs.kwok, stagesFile),
		"--manage-all-nodes=true",
		"--node-lease-duration-seconds=40",
		"--cidr=" + c.podRange(),
	}
	if c.stages != "" {
		args = append(args, "--config="+c.stages)
	}
	kwok := server{name: "kwok", program: filepath.Join(c.programs.kwok, "kwok"), args: args}
	if c.exec {
		address := fmt.Sprintf("127.0.0.1:%d", c.ports.kubelet)
		kwok.args = append(kwok.args,
			"--config="+c.podsConfiguration(),
			"--node-ip=127.0.0.1",
			fmt.Sprintf("--node-port=%d", c.ports.kubelet),
			"--server-address="+address,
			"--tls-cert-file="+c.path("server.crt"),
			"--tls-private-key-file="+c.path("server.key"),
		)
		kwok.health = "https://" + address + "/healthz"
	}
	return kwok
}

// servingFlags are the flags that kube-controller-manager and kube-scheduler have in common. There is one process of each, so leader election
// is disabled.
func (c *cluster) servingFlags(kubeconfig string, port int) []string {
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--leader-elect=false",
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		"--tls-cert-file=" + c.path("server.crt"),
		"--tls-private-key-file=" + c.path("server.key"),
	}
}

// nodeManifests are the Node objects of a member.
func (c *cluster) nodeManifests() []string {
	var manifests []string
	for node := 1; node <= c.nodes; node++ {
		manifests = append(manifests, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node",
  "metadata": {"name": "%[1]s-node-%[2]d", "labels": {
    "kubernetes.io/hostname": "%[1]s-node-%[2]d", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
    "topology.kubernetes.io/region": "%[1]s", "topology.kubernetes.io/zone": "%[1]s-%[2]d"}},
  "status": {"allocatable": %[3]s, "capacity": %[3]s}}`, c.name, node, c.nodeCapacity()))
	}
	return manifests
}

// nodeCapacity is the capacity of a node, which pods can request.
func (c *cluster) nodeCapacity() string {
	return fmt.Sprintf(`{"cpu": %q, "memory": %q, "ephemeral-storage": "100Gi", "pods": "110"}`, c.nodeCPU, c.nodeMemory)
}
