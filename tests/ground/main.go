// Ground starts real Kubernetes clusters on the loopback address: a control plane and members, built from published Go modules.
//
// It is run through `.ci/ground`, which names the folders that this program reads and writes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

const usageText = `usage: .ci/ground COMMAND

  build [VERSION...]                  build the servers of these Kubernetes versions; by default of 1.36
  up [FLAGS] [-- COMMAND [ARG...]]    start a fleet; remove it at SIGINT or SIGTERM, or when COMMAND ends
  down DIR                            remove the fleet of DIR, which "up --detach" started
  e2e [FLAGS]                         run Kubernetes' own conformance specs against clusters
  clients [FLAGS]                     check an API with client-go's informers, a controller-runtime manager and Helm
  versions                            print the Kubernetes versions that can be built
  pin [--e2e] VERSION                 write the module that builds a version, such as v1.36.3, or its e2e suite

"up -h", "e2e -h" and "clients -h" print their flags.
`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usageText)
		os.Exit(2)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	err := run(ctx, os.Args[1], os.Args[2:])
	var exitError *exec.ExitError
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case errors.As(err, &exitError) && exitError.ExitCode() > 0:
		os.Exit(exitError.ExitCode())
	default:
		fmt.Fprintf(os.Stderr, "ground: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, command string, args []string) error {
	if command == "down" && len(args) == 1 {
		return down(args[0])
	}
	builder, err := newBuilder()
	if err != nil {
		return err
	}
	switch {
	case command == "build":
		if len(args) == 0 {
			args = []string{defaultVersion}
		}
		return builder.buildAll(ctx, args)
	case command == "up":
		options, err := parseOptions(args)
		if err != nil {
			return err
		}
		return up(ctx, builder, options)
	case command == "e2e":
		options, err := parseE2EOptions(args)
		if err != nil {
			return err
		}
		return runE2E(ctx, builder, options)
	case command == "clients":
		return runClients(ctx, builder, args)
	case command == "versions" && len(args) == 0:
		versions, err := builder.listVersions()
		if err != nil {
			return err
		}
		fmt.Println(strings.Join(versions, "\n"))
		return nil
	case command == "pin":
		return builder.pin(ctx, args)
	}
	fmt.Fprint(os.Stderr, usageText)
	return flag.ErrHelp
}

// runClients replaces this process with the program that checks an API with Go clients.
func runClients(ctx context.Context, b *builder, args []string) error {
	folder, err := b.build(ctx, clientsProduct())
	if err != nil {
		return err
	}
	program := filepath.Join(folder, "clients")
	return syscall.Exec(program, append([]string{program}, args...), withoutGroundVariables(os.Environ()))
}

// newBuilder reads the folders from the environment. The defaults are the current folder and a folder in the user's cache.
func newBuilder() (*builder, error) {
	source := os.Getenv("CROWSNEST_GROUND_SOURCE")
	if source == "" {
		source = "."
	}
	source, err := filepath.Abs(source)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(source, "etcd", "go.mod")); err != nil {
		return nil, fmt.Errorf("%s is not the folder tests/ground: run .ci/ground", source)
	}
	cache := os.Getenv("CROWSNEST_GROUND")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, err
		}
		cache = filepath.Join(home, ".cache", "crowsnest", "ground")
	}
	return &builder{source: source, cache: cache}, os.MkdirAll(cache, 0o755)
}
