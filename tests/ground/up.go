package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// detachedVariable is set for the process that runs the fleet of "up --detach"; its descriptor 3 reports that the fleet is ready.
const detachedVariable = "CROWSNEST_GROUND_DETACHED"

// up starts a fleet, and removes it when a signal is received, a server exits or the command of the options has finished.
func up(ctx context.Context, b *builder, o options) (failure error) {
	if err := b.buildAll(ctx, o.versions); err != nil {
		return err
	}
	detached := os.Getenv(detachedVariable) != ""
	if o.detach && !detached {
		return detach(ctx)
	}
	directory, err := makeDirectory(o.directory)
	if err != nil {
		return err
	}
	started := time.Now()
	f, err := newFleet(ctx, b, o, directory)
	if err != nil {
		return errors.Join(err, os.RemoveAll(directory))
	}
	defer func() { failure = errors.Join(failure, f.remove()) }()
	prepared := time.Since(started)
	if err := f.start(ctx); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted while the fleet was starting")
		}
		return err
	}
	f.report(os.Stderr, prepared, time.Since(started))
	if len(o.command) == 0 {
		fmt.Println(directory)
	}
	if detached {
		if err := f.detachOutput(); err != nil {
			return err
		}
	}
	if len(o.command) > 0 {
		return f.runCommand(ctx, o.command)
	}
	select {
	case <-ctx.Done():
		return nil
	case p := <-f.supervisor.failed:
		return p.exitError()
	}
}

// withRealMember starts one member, passes the member's kubeconfig to a function, and removes the fleet afterwards.
func (b *builder) withRealMember(ctx context.Context, version string, use func(kubeconfig string) error) (failure error) {
	o, err := parseOptions([]string{"--control-plane=false", "--members=1", "--kubernetes=" + version})
	if err != nil {
		return err
	}
	if err := b.buildAll(ctx, o.versions); err != nil {
		return err
	}
	directory, err := makeDirectory("")
	if err != nil {
		return err
	}
	f, err := newFleet(ctx, b, o, directory)
	if err != nil {
		return errors.Join(err, os.RemoveAll(directory))
	}
	defer func() { failure = errors.Join(failure, f.remove()) }()
	if err := f.start(ctx); err != nil {
		return err
	}
	return use(f.kubeconfig(f.clusters[0]))
}

// makeDirectory creates the folder of a fleet. Servers need an absolute path; etcd requires it to be private.
func makeDirectory(path string) (string, error) {
	if path == "" {
		return os.MkdirTemp("", "crowsnest-ground-")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return path, os.Mkdir(path, 0o700)
}

// runCommand runs a command with the fleet's kubeconfig and kubectl. The command is stopped if a server exits.
func (f *fleet) runCommand(ctx context.Context, arguments []string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case p := <-f.supervisor.failed:
			cancel(p.exitError())
		case <-ctx.Done():
		}
	}()
	command := exec.CommandContext(ctx, arguments[0], arguments[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.Env = append(withoutGroundVariables(os.Environ()),
		"KUBECONFIG="+f.allContexts(),
		"GROUND_DIR="+f.directory,
		"PATH="+filepath.Dir(f.kubectl)+string(os.PathListSeparator)+os.Getenv("PATH"),
	)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 10 * time.Second
	err := command.Run()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// withoutGroundVariables removes the environment variables of this program, because `crowsnest serve` refuses unknown variables CROWSNEST_….
func withoutGroundVariables(environment []string) []string {
	return slices.DeleteFunc(environment, func(variable string) bool { return strings.HasPrefix(variable, "CROWSNEST_GROUND") })
}

// detach starts this program again with the same arguments in a session of its own, and returns when its fleet is ready.
func detach(ctx context.Context) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	background := exec.Command(program, os.Args[1:]...)
	background.Stdout, background.Stderr = os.Stdout, os.Stderr
	background.Env = append(os.Environ(), detachedVariable+"=1")
	background.ExtraFiles = []*os.File{writer}
	background.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := background.Start(); err != nil {
		return err
	}
	writer.Close()
	// A signal to this process also terminates the background process.
	defer context.AfterFunc(ctx, func() { _ = background.Process.Signal(syscall.SIGTERM) })()
	if count, _ := reader.Read(make([]byte, 1)); count == 1 {
		return nil
	}
	if err := background.Wait(); err != nil {
		return err
	}
	return errors.New("the fleet was not started")
}

// detachOutput reports readiness to the process that waits in detach, and sends further output to the file "up.log" of the fleet's folder.
func (f *fleet) detachOutput() error {
	log, err := os.Create(filepath.Join(f.directory, "up.log"))
	if err != nil {
		return err
	}
	for _, descriptor := range []int{syscall.Stdout, syscall.Stderr} {
		if err := redirect(int(log.Fd()), descriptor); err != nil {
			return err
		}
	}
	ready := os.NewFile(3, "ready")
	defer ready.Close()
	_, err = ready.Write([]byte{1})
	return err
}

// down removes the fleet of a folder, even if the process that ran it was killed.
func down(directory string) error {
	lock, err := os.Open(lockPath(directory))
	if err != nil {
		return fmt.Errorf("%s is not the folder of a fleet: %w", directory, err)
	}
	defer lock.Close()
	text, err := os.ReadFile(lock.Name())
	if err != nil {
		return err
	}
	if !isFleet(directory, text) {
		return fmt.Errorf("%s is not the folder of a fleet", directory)
	}
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		process, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return fmt.Errorf("%s has no process id: %w", lock.Name(), err)
		}
		if err := syscall.Kill(process, syscall.SIGTERM); err != nil {
			return fmt.Errorf("cannot end process %d: %w", process, err)
		}
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			return err
		}
	}
	return os.RemoveAll(directory)
}

// isFleet reports whether newFleet created the folder: no other folder may be removed.
func isFleet(directory string, lock []byte) bool {
	_, err := strconv.Atoi(strings.TrimSpace(string(lock)))
	kubeconfigs, statErr := os.Stat(filepath.Join(directory, "kubeconfigs"))
	return err == nil && statErr == nil && kubeconfigs.IsDir()
}
