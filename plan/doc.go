// Package plan decides. From a snapshot of what is declared, what the nodes
// last said and what they have acknowledged, Make derives what each node is to
// run and how it is to steer, which instances to create, to drain and to
// forget, and what to tell people about it. Check says what is impossible
// before it is stored, Compare what a change would do, Trace where a flow goes.
//
// Everything here is a pure function: time is in the snapshot, ids are handed
// in, equal snapshots give equal results. Nothing in a Result takes effect by
// itself. A new id is written to the store first and used by a plan only when
// it is found in the next snapshot, so a crash between the two loses nothing.
//
// # One plan after the other
//
// No plan points a rule or group at something on another node before that node
// acknowledged it, and none takes away something to which another node may
// still point. Hence changes arrive in steps: an instance's own node first
// (its vport, the tables of its paths), then the nodes that send to it, last
// the rules at the edges. Backwards the other way round. The steps need no
// memory but the acknowledged plans: each acknowledgement makes a new snapshot,
// and Make does what has become possible.
//
// # Placement
//
// An instance goes to a node of the cloudlet that is ready, schedulable, not
// being drained, has the wanted labels and room. Of several, in this order: the
// one with the fewest instances of the deployment (spread: node), one that is
// not the gateway (steering has its processor there, and a compute node can
// die alone), the one with most room left, the first by name.
package plan
