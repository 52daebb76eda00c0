// Package sipkeepalive carries what sip-keepalive.c was compiled to.
package sipkeepalive

import _ "embed"

//go:embed sip-keepalive.wasm
var Module []byte
