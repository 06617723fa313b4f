package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// Servers listen below the ephemeral port range. Otherwise, an outgoing connection could take a port after it was found free and before
// its server starts.
const firstPort, lastPort = 20000, 32000

// freePorts finds ports of the loopback address that nothing listens on.
func freePorts(count int) ([]int, error) {
	return choosePorts(count, func() int { return firstPort + rand.IntN(lastPort-firstPort) }, isFree)
}

// choosePorts takes candidates that are free, each once.
func choosePorts(count int, candidate func() int, free func(port int) bool) ([]int, error) {
	var ports []int
	taken := map[int]bool{}
	for attempt := 0; len(ports) < count; attempt++ {
		if attempt > 100*count {
			return nil, errors.New("no free ports on 127.0.0.1")
		}
		port := candidate()
		if taken[port] || !free(port) {
			continue
		}
		taken[port] = true
		ports = append(ports, port)
	}
	return ports, nil
}

func isFree(port int) bool {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}
