// Package control is the server's loop around plan. It keeps a mirror of the
// store and of what the nodes last said, plans whenever either changes, pushes
// the plans, and writes down what was decided.
//
// Pushing comes first and never waits for the store: plans only contain what
// the store has already, so a dead instance is answered by every other node's
// new plan within milliseconds, however slow the store is. What needs a new id
// (an instance, a path) is written first and planned with afterwards.
//
// Reports and heartbeats stay in memory. A restarted server learns from each
// node's hello what is in force there, and takes nothing away before it has
// heard the nodes it knows of, or has waited long enough.
//
// There is one Controller for one store. With several servers on one external
// etcd, Run is what the elected leader does; Check, Preview
// and Trace read the mirror only and may run anywhere that has one.
package control
