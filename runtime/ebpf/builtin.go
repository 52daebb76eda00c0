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
}

// builtIn finds a function that comes with onpath (onpath.BuiltInFunctions).
func builtIn(name string) (builtInFunction, bool) {
	f, ok := map[string]builtInFunction{
		"firewall":     {firewallObject, compileFirewall},
		"loadbalancer": {loadbalancerObject, compileLoadbalancer},
		"monitor":      {monitorObject, compileMonitor},
		"ratelimit":    {ratelimitObject, compileRatelimit},
	}[name]
	return f, ok
}
