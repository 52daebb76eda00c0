package bench

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/onpath/onpath/plan/paths"
)

// TestSpanningTree: its paths have the shortest longest leg of all, and lead where they say.
func TestSpanningTree(t *testing.T) {
	const nodes = 40
	d, err := randomMesh(nodes, 7)
	if err != nil {
		t.Fatal(err)
	}
	f, tree := paths.Compute(d), spanningTree(d)
	for i := range nodes {
		for j, p := range tree.paths(i) {
			if p.Nodes[0] != i || p.Nodes[len(p.Nodes)-1] != j {
				t.Errorf("from %d to %d: %v", i, j, p.Nodes)
			}
			if i != j && p.Max != minimaxPath(f, i, j).Max {
				t.Errorf("from %d to %d: the longest leg is %s, can be %s", i, j, p.Max, minimaxPath(f, i, j).Max)
			}
		}
	}
}

// TestReadGraphBounds: a map has delays that a wire can have.
func TestReadGraphBounds(t *testing.T) {
	for text, good := range map[string]bool{"0": true, "12.5": true, "60000": true, "-5": false, "NaN": false, "1e300": false, "+Inf": false, "60001": false} {
		file := filepath.Join(t.TempDir(), "AS1.edges.lat")
		if err := os.WriteFile(file, []byte("Paris, France -> Berlin, Germany "+text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readGraph(file); (err == nil) != good {
			t.Errorf("%s ms: %v", text, err)
		}
	}
}
