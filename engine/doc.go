// Package engine runs the modules of one instance: WebAssembly in the packet path, as
// servers, or both (NetServ §2.4).
//
// One goroutine meets all events, one at a time: a batch of packets, a timer, a
// datagram, a request. Packets visit the modules in their order. The list of modules
// changes between two batches; the modules that stay notice nothing. What a module may
// cost is bounded: its steps (engine/wasm), its memory, what it sends and keeps. A
// module that traps or breaks a bound leaves the list by itself and comes back later.
package engine
