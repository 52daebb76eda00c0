package signalling

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestNodesAreReadAgain: whatever names come in answers, the file that keeps the keys is one
// that is read the next time.
func TestNodesAreReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nodes")
	n, err := OpenNodes(file)
	if err != nil {
		t.Fatal(err)
	}
	key := []byte(strings.Repeat("k", 32))
	for _, name := range []string{"", "#x", "a b", "a\u00a0b", "a\u0085b", "a\u2028b", "\u00a0a", "edge-1", "a#b"} {
		n.Learn(name, key)
	}
	if fresh, err := n.Save(); err != nil || len(fresh) != 2 {
		t.Fatalf("%q %v", fresh, err)
	}
	again, err := OpenNodes(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(again.Known("edge-1")) != 1 || len(again.Known("a#b")) != 1 {
		t.Error("a key is lost")
	}
}
