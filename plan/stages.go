package plan

import (
	"net/netip"

	"github.com/onpath/onpath"
)

// The stages of planning, in order. Each reads the world, which holds what is known and
// what the stages before have decided, and keeps to itself what it works out on the way.

// resolver finds what chains and deployments refer to.
type resolver struct {
	*world
	asIs       map[*onpath.Function]functionOf // of deployments that add nothing
	objectsOf  map[name][]*onpath.Instance     // by deployment, made when they are first asked for
	selectable map[string][]netip.Prefix       // tenants' addresses, likewise
}

// checker refuses what is impossible together: overlaps, and more than data paths hold.
type checker struct{ *world }

// departures finds the draining instances that may go.
type departures struct {
	*world
	ended map[member][]*endedPath // made when they are first asked for
	begun map[member]bool         // likewise: paths by the plans that nodes have
}

// pathfinder decides which paths there are in a cloudlet, and which of them steer.
type pathfinder struct {
	*world
	kept map[onpath.PathID]bool // ended paths that their chains return to
}

// nodeplans makes the plans of nodes, those of several cloudlets at the same time.
type nodeplans struct {
	*world
	inbound map[*node]map[onpath.PathID]bool
	prepare map[string][]onpath.FunctionSpec // by node
	builder builder
}

// rollout makes and drains instances.
type rollout struct {
	*world
	created map[placedOn]int
	inUse   map[netip.Addr]bool   // addresses, made when they are first asked for
	full    map[netip.Prefix]bool // pools in which none is left
}

// teller says in statuses and events how things stand.
type teller struct {
	*world
	waiting map[name]string     // instances that nobody sees, made when they are first asked for
	rivals  *rivals             // tenants with chains, likewise
	before  map[*chain][]*chain // of the same tenant, with traffic that may meet the chain's, likewise
}
