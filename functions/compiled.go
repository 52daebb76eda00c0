// Package functions carries what the catalogue's packet modules were compiled to.
package functions

import _ "embed"

// The modules' folders have no Go code of their own: a Go package with C files in it needs
// cgo.
var (
	//go:embed netmonitor/netmonitor.wasm
	NetmonitorModule []byte
	//go:embed netmonitor/netmonitor.o
	NetmonitorObject []byte
	//go:embed sip-keepalive/sip-keepalive.wasm
	SIPKeepAliveModule []byte
)
