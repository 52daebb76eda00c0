package node_test

import (
	"path/filepath"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node"
)

// TestHold: a second agent is refused before it touches anything, from the moment
// in which the first one begins; see cli.
func TestHold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "node")
	for range 2 { // what is released is free
		release, err := node.Hold(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := node.Hold(dir); onpath.CodeOf(err) != onpath.CodeConflict {
			t.Errorf("while it is held: %v", err)
		}
		release()
	}
}

// TestHeld: an agent runs in a folder that its program holds.
func TestHeld(t *testing.T) {
	b := newFixture(t)
	release, err := node.Hold(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	b.edit = func(o *node.Options) { o.Held = true }
	r := b.run()
	r.stop()
	if _, err := node.Hold(b.dir); onpath.CodeOf(err) != onpath.CodeConflict {
		t.Errorf("the agent's end released what it did not hold: %v", err)
	}
}
