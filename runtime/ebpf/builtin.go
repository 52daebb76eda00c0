package ebpf

import (
	_ "embed" // for the objects
)

//go:generate make -C ../../bpf functions

//go:embed objects/firewall.o
var firewallObject []byte

//go:embed objects/loadbalancer.o
var loadbalancerObject []byte

//go:embed objects/monitor.o
var monitorObject []byte

//go:embed objects/ratelimit.o
var ratelimitObject []byte

type builtInFunction struct {
	code     []byte
	compiler compiler
	// pointless finds what the function can run with, but nobody can mean; nil: it
	// knows of nothing. It is asked when configuration is applied.
	pointless func(config map[string]string) error
}

// builtIn finds a function that comes with onpath (onpath.BuiltInFunctions).
func builtIn(name string) (builtInFunction, bool) {
	f, ok := map[string]builtInFunction{
		"firewall":     {firewallObject, compileFirewall, nil},
		"loadbalancer": {loadbalancerObject, compileLoadbalancer, unserved},
		"monitor":      {monitorObject, compileMonitor, nil},
		"ratelimit":    {ratelimitObject, compileRatelimit, nil},
	}[name]
	return f, ok
}
