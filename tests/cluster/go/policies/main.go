// Command policies enforces NetworkPolicies on the test cluster's node: kube-router with that one of
// its controllers. A build of all of it has a router, a proxy and twice the modules.
package main

import (
	"flag"
	"log"
	"slices"
	"sync"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/cloudnativelabs/kube-router/v2/pkg/utils"
	"github.com/spf13/pflag"
	core "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

func main() {
	config := options.NewKubeRouterConfig()
	config.AddFlags(pflag.CommandLine)
	klog.InitFlags(nil)
	pflag.CommandLine.AddGoFlagSet(flag.CommandLine)
	pflag.Parse()
	if err := run(config); err != nil {
		log.Fatal(err)
	}
}

func run(config *options.KubeRouterConfig) error {
	access, err := clientcmd.BuildConfigFromFlags(config.Master, config.Kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return err
	}
	forever := make(chan struct{})
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	factory.Start(forever)
	factory.WaitForCacheSync(forever)

	tables, sets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	for family := range sets {
		all, err := utils.NewIPSet(false)
		if err != nil {
			return err
		}
		sets[family] = setsOfFamily{all, family == core.IPv6Protocol}
	}
	controller, err := netpol.NewNetworkPolicyController(
		client, config, pods, policies, namespaces, &sync.Mutex{}, tables, sets)
	if err != nil {
		return err
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods:       controller.PodEventHandler,
		namespaces: controller.NamespaceEventHandler,
		policies:   controller.NetworkPolicyEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	if err := letNeighboursBeAsked(tables[core.IPv6Protocol]); err != nil {
		return err
	}
	beats := make(chan *healthcheck.ControllerHeartbeat, 1)
	go func() {
		for range beats {
			// It waits for whoever looks after its health, who is not here.
		}
	}()
	var ended sync.WaitGroup
	ended.Add(1)
	controller.Run(beats, forever, &ended)
	return nil
}

// Of IPv6 this version makes sets by one name and looks for them by another, and of each family it
// writes what it has read of the other's. Their names differ without a prefix.
type setsOfFamily struct {
	utils.IPSetHandler
	six bool
}

func (sets setsOfFamily) RefreshSet(name string, entries [][]string, kind string) {
	sets.IPSetHandler.RefreshSet(name, entries, kind)
	set := sets.Get(name)
	if sets.six && !slices.Contains(set.Options, "inet6") {
		set.Options = append(set.Options, utils.OptionFamilly, "inet6")
	}
}

func (sets setsOfFamily) Save() error {
	err := sets.IPSetHandler.Save()
	for name, set := range sets.Sets() {
		if slices.Contains(set.Options, "inet6") != sets.six {
			delete(sets.Sets(), name)
		}
	}
	return err
}

// IPv6 asks for the neighbour's link address by packets that this version takes for a caller's.
func letNeighboursBeAsked(table utils.IPTablesHandler) error {
	if table == nil {
		return nil
	}
	for _, chain := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		chain = "KUBE-ROUTER-" + chain
		if err := table.NewChain("filter", chain); err != nil {
			return err
		}
		for _, kind := range []string{"neighbour-solicitation", "neighbour-advertisement"} {
			err := table.AppendUnique(
				"filter", chain, "-p", "ipv6-icmp", "--icmpv6-type", kind, "-j", "RETURN")
			if err != nil {
				return err
			}
		}
	}
	return nil
}
