// Package netmonitor carries what netmonitor.c was compiled to.
package netmonitor

import _ "embed"

var (
	//go:embed netmonitor.wasm
	Module []byte
	//go:embed netmonitor.o
	Object []byte
)
