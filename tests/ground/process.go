package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// logLines is the number of log lines that a failure prints.
const logLines = 20

var errStopping = errors.New("the fleet is being removed")

// supervisor starts the servers of a fleet in one process group, and ends all of them together.
type supervisor struct {
	starts chan startRequest
	// failed receives the first server that exited unexpectedly.
	failed chan *process

	lock      sync.Mutex
	stopping  bool
	group     int
	processes []*process
}

// startRequest is a request to start a command; result receives its error.
type startRequest struct {
	command *exec.Cmd
	result  chan error
}

// process is a running server.
type process struct {
	cluster, name string
	log           string
	command       *exec.Cmd
	// done is closed when the process has ended.
	done chan struct{}
}

func newSupervisor() *supervisor {
	s := &supervisor{starts: make(chan startRequest), failed: make(chan *process, 1)}
	go s.serve()
	return s
}

// serve starts processes on one thread that never ends: with a parent death signal, Linux ends a process when the thread that started it ends.
func (s *supervisor) serve() {
	runtime.LockOSThread()
	for request := range s.starts {
		request.result <- s.startCommand(request.command)
	}
}

func (s *supervisor) startCommand(command *exec.Cmd) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.stopping {
		return errStopping
	}
	// The first process leads the group that the others join.
	command.SysProcAttr = processAttributes(s.group)
	if err := command.Start(); err != nil {
		return err
	}
	if s.group == 0 {
		s.group = command.Process.Pid
	}
	return nil
}

// run starts a server of a cluster.
func (s *supervisor) run(c *cluster, server server) (*process, error) {
	p := &process{cluster: c.name, name: server.name, log: c.path(server.name + ".log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.command = exec.Command(server.program, server.args...)
	p.command.Dir, p.command.Stdout, p.command.Stderr = c.directory, log, log
	// Servers must not read the user's configuration.
	p.command.Env = []string{"HOME=" + c.directory, "PATH=" + os.Getenv("PATH")}
	request := startRequest{command: p.command, result: make(chan error, 1)}
	s.starts <- request
	if err := <-request.result; err != nil {
		return nil, fmt.Errorf("cannot start %s of %s: %w", p.name, p.cluster, err)
	}
	s.lock.Lock()
	s.processes = append(s.processes, p)
	s.lock.Unlock()
	go s.waitForEnd(p)
	return p, nil
}

func (s *supervisor) waitForEnd(p *process) {
	// ProcessState contains the exit status.
	_ = p.command.Wait()
	close(p.done)
	select {
	case s.failed <- p:
	default:
	}
}

// stop kills all servers and returns once they have ended. Their data is removed afterwards, so they do not have to save it.
func (s *supervisor) stop() {
	s.lock.Lock()
	s.stopping = true
	group, processes := s.group, s.processes
	s.lock.Unlock()
	if group != 0 {
		// The only possible error is ESRCH: all servers have ended.
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
	for _, p := range processes {
		<-p.done
	}
}

// all returns the servers that were started.
func (s *supervisor) all() []*process {
	s.lock.Lock()
	defer s.lock.Unlock()
	return append([]*process{}, s.processes...)
}

// failure returns the error for a server that exited or was not ready in time, with the last lines of its log.
func (p *process) failure(description string) error {
	text, err := os.ReadFile(p.log)
	if err != nil {
		text = []byte(err.Error())
	}
	return fmt.Errorf("%s of %s %s; the end of its log:\n%s", p.name, p.cluster, description, lastLines(text, logLines))
}

// exitError returns the error for a server that has ended.
func (p *process) exitError() error {
	return p.failure("ended (" + p.command.ProcessState.String() + ")")
}

// lastLines returns the last lines of a text, indented.
func lastLines(text []byte, count int) string {
	lines := bytes.Split(bytes.TrimRight(text, "\n"), []byte("\n"))
	if len(lines) > count {
		lines = lines[len(lines)-count:]
	}
	return "  " + string(bytes.Join(lines, []byte("\n  ")))
}
