// Package lab emulates networks on one machine: hosts are network namespaces,
// links are veth pairs, and what a link is given of rate, delay, jitter and
// loss is emulated by the kernel's netem or, where the kernel lacks it, by a
// process of the lab's own.
//
//	topology, err := lab.ParseFile("two-hosts.yaml")
//	l, err := lab.Up(ctx, topology, lab.Options{})
//	out, err := l.Exec(ctx, "client", "ping", "-c1", "10.9.0.2")
//	err = l.Down(ctx)
//
// A host has no process of its own: its namespaces are kept by bind mounts
// below the state directory, so that a lab outlives whoever made it, and Open
// finds it again.
//
// # Helper processes
//
// Entering a namespace, preparing one, and carrying frames need a process of
// their own. The lab starts the running program once more under a name that
// begins with "onpath-lab-"; this package's init recognises the name and does
// the work before main begins. A program, also a test, need only import this
// package.
package lab
