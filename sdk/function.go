// Package sdk is what the functions that come with onpath are made with: onpath.h for
// what runs in the kernel, this package for what the node does beside it.
package sdk

import (
	"context"
	"log/slog"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
)

// ConfigTable is the table of a function's struct onpath_config, its only entry 0.
const ConfigTable = "onpath_config"

// Function is an ebpf function that comes with onpath.
type Function struct {
	// Name is what an EBPFSpec.Object calls it, and its source without the end .bpf.c.
	Name   string
	Object []byte // compiled
	// Compile turns what the function is told into what writes it. It finds every fault
	// before anything is written. An error's Field is the name of the value it is about.
	Compile func(Config) (Write, error)
	// Pointless finds what the function can run with, but nobody can mean; nil: nothing.
	// It is asked when a configuration is applied.
	Pointless func(Config) error
	// Lists are values that are lists of addresses, as onpath.ReadAddresses reads them, by
	// name, each with the table that holds the list alone. Of a list that is not told the
	// table stays empty: it must be of a kind whose entries take memory one by one.
	Lists map[string]string
	// Accompany is what the node does beside an instance while that has the
	// configuration, until the context ends. Nil, or a nil answer: nothing.
	Accompany func(Config, *Instance) func(context.Context)
	// Keys are the counts by keys of its own choice, those with the most packets; nil: it
	// has none.
	Keys func(Tables) ([]onpath.KeyCount, error)
}

// Config is what a function is told, by name; files too.
type Config map[string]string

// Tables are an instance's, by name.
type Tables map[string]*ebpf.Map

// Write puts a configuration in force. Packets see the old or the new one.
type Write func(Tables) error

// Instance is one that runs.
type Instance struct {
	ID     string
	Tables Tables
	Log    *slog.Logger // the node's
	// Say writes a line to the instance's log.
	Say func(format string, args ...any)
}
