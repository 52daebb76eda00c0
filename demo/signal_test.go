package demo

import (
	"bytes"
	"os"
	"testing"
)

// TestSignalModules: the modules of the example are those of functions/.
func TestSignalModules(t *testing.T) {
	for _, name := range []string{"netmonitor", "sip-keepalive"} {
		made, err := os.ReadFile("../functions/" + name + "/" + name + ".wasm")
		if err != nil {
			t.Fatal(err)
		}
		if copied, err := os.ReadFile("../examples/signal/" + name + ".wasm"); err != nil || !bytes.Equal(made, copied) {
			t.Errorf("examples/signal/%s.wasm is not that of functions/ (%v): copy it", name, err)
		}
	}
}
