// Package onpath holds the nouns of in-network services: what operators and
// tenants write down (resources), what the planner tells one node (NodePlan),
// what a node tells back (NodeReport), and the small interfaces behind which
// the parts that do I/O stand (Store, Runtime, Datapath).
//
// It imports the standard library only and does no I/O. Every other package
// imports it; it imports none of them. The words are those of ARCHITECTURE.md.
package onpath
