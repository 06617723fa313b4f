// Clients checks Crowsnest's API with common Go clients: client-go's informers, a controller-runtime manager and Helm.
//
// It is run by `.ci/ground clients`. CONTRIBUTING.md has examples.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	controllerruntime "sigs.k8s.io/controller-runtime"

	"github.com/go-logr/logr"

	"crowsnest/ground/clients/options"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	o, err := options.Parse(os.Args[1:])
	if err == nil {
		err = run(ctx, o)
	}
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "clients: %v\n", err)
		os.Exit(1)
	}
}

// address is the address of an API through which the objects of a cluster are read.
type address struct {
	name   string
	config *rest.Config
	// origin is the address of the cluster itself, where its objects are written.
	origin *rest.Config
	// namespace of the objects. The control plane and the member have namespaces of different names, because Karmada creates the
	// namespaces of the control plane in members.
	namespace string
	// workloads is true if pods run in the cluster.
	workloads bool
}

func run(ctx context.Context, o options.Options) (failure error) {
	// Clients log each of their retries, which are expected while crowsnest restarts.
	controllerruntime.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	var fleet *crowsnest
	if o.Crowsnest != "" {
		folder, err := os.MkdirTemp("", "crowsnest-clients-")
		if err != nil {
			return err
		}
		defer func() {
			// The log is kept for the analysis of failures.
			if failure == nil {
				failure = os.RemoveAll(folder)
			} else if fleet != nil {
				fmt.Fprintf(os.Stderr, "the log of crowsnest is %s\n", fleet.log())
			}
		}()
		if fleet, err = newCrowsnest(o.Crowsnest, folder, o.Member); err != nil {
			return err
		}
		defer func() { failure = errors.Join(failure, fleet.stop()) }()
		if err := fleet.start(ctx, o.Member); err != nil {
			return err
		}
		o.Kubeconfig = fleet.kubeconfig()
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return err
	}
	// A rate limit of the client would slow down the writes.
	config.QPS = -1
	addresses := addressesOf(config, o.Member, fmt.Sprintf("ground-clients-%d", os.Getpid()))
	for _, a := range addresses {
		remove, err := makeNamespace(ctx, a)
		if err != nil {
			return err
		}
		defer func() { failure = errors.Join(failure, remove()) }()
	}
	r := &results{out: os.Stdout}
	for _, a := range addresses {
		if a.name == fleetProxyName {
			// Managers and Helm create objects, but objects that are created through the fleet-wide proxy are placed by policies.
			continue
		}
		if slices.Contains(o.Checks, "manager") {
			r.check(a.name, "manager", func() (string, error) { return checkManager(ctx, a) })
		}
		if slices.Contains(o.Checks, "helm") {
			r.check(a.name, "helm", func() (string, error) { return checkHelm(ctx, a) })
		}
	}
	if slices.Contains(o.Checks, "informers") {
		if err := checkInformers(ctx, o, config, addresses, fleet, r); err != nil {
			return err
		}
	}
	if r.failures > 0 {
		return fmt.Errorf("%d checks failed", r.failures)
	}
	return nil
}

// fleetProxyName is the name of the address of the fleet-wide proxy.
const fleetProxyName = "fleet-proxy"

// addressesOf returns the addresses of a control plane: only its own if there is no member.
func addressesOf(config *rest.Config, member, namespace string) []address {
	addresses := []address{{name: "control-plane", config: config, origin: config, namespace: namespace}}
	if member == "" {
		return addresses
	}
	origin := withPath(config, memberProxyPath(member))
	return append(addresses,
		address{name: "member-proxy", config: origin, origin: origin, namespace: namespace + "-member", workloads: true},
		address{name: fleetProxyName, config: withPath(config, fleetProxyPath), origin: origin, namespace: namespace + "-member"},
	)
}

// makeNamespace creates the namespace of an address, unless another address of the same cluster has it, and returns a function that removes it.
func makeNamespace(ctx context.Context, a address) (remove func() error, failure error) {
	client, err := kubernetes.NewForConfig(a.origin)
	if err != nil {
		return nil, err
	}
	namespaces := client.CoreV1().Namespaces()
	_, err = namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.namespace}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return func() error { return nil }, nil
	}
	return func() error {
		return namespaces.Delete(context.WithoutCancel(ctx), a.namespace, metav1.DeleteOptions{})
	}, err
}
