//go:build !linux

package main

import "syscall"

// processAttributes returns attributes that put a server into a process group, a new one if group is 0.
func processAttributes(group int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pgid: group}
}

// redirect makes the descriptor `to` a copy of `from`.
func redirect(from, to int) error { return syscall.Dup2(from, to) }
