// Command pause is the first process of every pod: it holds the pod's namespaces open and does
// nothing else. It is written in Go because the test cluster needs a Go compiler anyway, and no
// other.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// Pods of one process namespace leave their orphans here; the kernel reaps them by itself
	// for a parent that ignores SIGCHLD.
	signal.Ignore(syscall.SIGCHLD)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
}
