package main

import "syscall"

// processAttributes returns attributes that put a server into a process group, a new one if group is 0. The server ends when this program is killed.
func processAttributes(group int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pgid: group, Pdeathsig: syscall.SIGKILL}
}

// redirect makes the descriptor `to` a copy of `from`.
func redirect(from, to int) error { return syscall.Dup3(from, to, 0) }
