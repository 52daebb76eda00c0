// Package functions carries the catalogue inside the program: recipes, Functions, pages and
// what packet modules were compiled to.
package functions

import "embed"

// The modules' folders have no Go code of their own: a Go package with C files in it needs
// cgo.
var (
	//go:embed netmonitor/netmonitor.wasm
	NetmonitorModule []byte
	//go:embed netmonitor/netmonitor.o
	NetmonitorObject []byte
	//go:embed active-cdn/active-cdn.wasm
	ActiveCDNModule []byte
	//go:embed sip-keepalive/sip-keepalive.wasm
	SIPKeepAliveModule []byte
)

// Catalogue has the folders of all functions, with what an entry is built and applied from.
//
//go:embed */*.yaml */*.md */*.sh */*.py */*.wasm
var Catalogue embed.FS
