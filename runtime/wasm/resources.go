package wasm

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/cpulimit"
)

const (
	minMemory = 24 << 20
	maxPids   = 128
)

// linuxResources are what a control group may use; awaited: packets wait for its instance.
func linuxResources(r onpath.Resources, awaited bool) *specs.LinuxResources {
	out := &specs.LinuxResources{CPU: cpulimit.Of(r.CPU, awaited), Pids: &specs.LinuxPids{Limit: new(int64(maxPids))}}
	if r.Memory > 0 {
		limit := max(int64(r.Memory), minMemory)
		out.Memory = &specs.LinuxMemory{Limit: &limit}
	}
	return out
}
