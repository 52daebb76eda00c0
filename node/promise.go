package node

import (
	"cmp"
	"fmt"

	"github.com/onpath/onpath"
)

// promise confirms that the node is ready and has as much as it will have promised at
// most (PacketCloud §3.4). What its Node object declares holds against what it measured.
func (a *Agent) promise(r onpath.PromiseRequest) onpath.Promise {
	m := a.machine.Current()
	if why := onpath.RuntimeDown(m.Conditions); why != "" {
		return onpath.Promise{Why: "it is not ready: " + why}
	}
	has := onpath.Resources{
		CPU: cmp.Or(r.Declared.CPU, m.Capacity.CPU), Memory: cmp.Or(r.Declared.Memory, m.Capacity.Memory),
		Disk: cmp.Or(r.Declared.Disk, m.Capacity.Disk), Network: cmp.Or(r.Declared.Network, m.Capacity.Network),
	}
	if !has.Fits(r.Promised) {
		return onpath.Promise{Why: fmt.Sprintf("it has %s CPU, %s of memory, %s of disk and %s of network", has.CPU,
			has.Memory, has.Disk, has.Network)}
	}
	return onpath.Promise{Kept: true}
}
