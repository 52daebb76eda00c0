// Package sdk carries the headers of packet functions inside the program, so that it can
// build them anywhere.
package sdk

import (
	_ "embed"
	"maps"
)

//go:embed onpath.h
var header []byte

//go:embed onpath_wasm.h
var wasmHeader []byte

// Headers are the files that a function includes, by name.
func Headers() map[string][]byte {
	return maps.Clone(map[string][]byte{"onpath.h": header, "onpath_wasm.h": wasmHeader})
}
