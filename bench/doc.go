// Package bench measures onpath against what it is compared with: the kernel's
// own forwarding, the least that eBPF programs can do, the same containers wired
// by hand, and switches in user space. All contestants of a benchmark run in one
// process, on one machine, one after the other and again in reverse order, with
// the same source, sink, offloads and pinning; what counts are the ratios of a
// round. Results are records; docs/performance.md says how they are made.
//
// Only cli imports this package.
package bench
