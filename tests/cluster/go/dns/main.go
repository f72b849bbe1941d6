// Command dns answers Service names for the test cluster: CoreDNS with the three plugins
// that this takes. A build with all of its plugins would take minutes and hundreds of modules.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func init() {
	// A query passes the plugins in this order.
	dnsserver.Directives = []string{"errors", "cache", "kubernetes"}
}

func main() {
	coremain.Run()
}
