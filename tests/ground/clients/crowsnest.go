package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// stopTimeout limits the shutdown of `crowsnest up`.
const stopTimeout = 30 * time.Second

// crowsnest is a running `crowsnest up` with one simulated member.
type crowsnest struct {
	program, folder string
	// arguments are the same at each start, so that clients find the process at the same addresses after a restart.
	arguments []string
	command   *exec.Cmd
	// result receives the exit error of the command.
	result chan error
}

// newCrowsnest prepares a fleet whose data is in a folder.
func newCrowsnest(program, folder, member string) (*crowsnest, error) {
	api, err := freeAddress()
	if err != nil {
		return nil, err
	}
	ui, err := freeAddress()
	if err != nil {
		return nil, err
	}
	arguments := []string{"up", "--data-dir", filepath.Join(folder, "data"), "--members", member, "--listen", api, "--ui-listen", ui}
	return &crowsnest{program: program, folder: folder, arguments: arguments}, nil
}

// freeAddress returns a loopback address that no process listens on.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

func (c *crowsnest) kubeconfig() string {
	return filepath.Join(c.folder, "data", "kubeconfigs", "cp.kubeconfig")
}

func (c *crowsnest) log() string { return filepath.Join(c.folder, "crowsnest.log") }

// start starts the process and waits until it proxies requests to its member.
func (c *crowsnest) start(ctx context.Context, member string) error {
	log, err := os.OpenFile(c.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	c.command = nil
	command := exec.Command(c.program, c.arguments...)
	command.Stdout, command.Stderr = log, log
	// Only this program receives SIGINT from the terminal; it then stops the process.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return err
	}
	c.command = command
	result := make(chan error, 1)
	c.result = result
	go func() { result <- command.Wait() }()
	err = waitFor(ctx, startTimeout, func() string {
		select {
		case err := <-result:
			result <- err
			return fmt.Sprintf("crowsnest ended: %v", err)
		default:
		}
		return c.unreadyReason(ctx, member)
	})
	if err != nil {
		return fmt.Errorf("crowsnest is not ready: %w; its log is %s", err, c.log())
	}
	return nil
}

// unreadyReason returns why the fleet is not ready, or an empty string.
func (c *crowsnest) unreadyReason(ctx context.Context, member string) string {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig())
	if err != nil {
		return err.Error()
	}
	for _, target := range []*rest.Config{config, withPath(config, memberProxyPath(member))} {
		if err := checkReady(ctx, target); err != nil {
			return fmt.Sprintf("%s is not ready: %v", target.Host, err)
		}
	}
	return ""
}

func checkReady(ctx context.Context, config *rest.Config) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(config.Host, "/")+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// stop shuts the process down.
func (c *crowsnest) stop() error {
	if c.command == nil {
		return nil
	}
	if err := c.command.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case err := <-c.result:
		return err
	case <-time.After(stopTimeout):
		_ = c.command.Process.Kill()
		return fmt.Errorf("crowsnest did not end within %v", stopTimeout)
	}
}

// restart ends the process and starts it again with its data.
func (c *crowsnest) restart(ctx context.Context, member string) error {
	if err := c.stop(); err != nil {
		return err
	}
	return c.start(ctx, member)
}

// withPath returns a client configuration for a path of a server.
func withPath(config *rest.Config, path string) *rest.Config {
	result := rest.CopyConfig(config)
	result.Host = strings.TrimRight(result.Host, "/") + path
	return result
}

func memberProxyPath(member string) string {
	return "/apis/cluster.karmada.io/v1alpha1/clusters/" + member + "/proxy"
}

const fleetProxyPath = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy"
