package onpath

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

// TestCompactPlanOfManyFiles: a compact plan is expanded to what it was, and what that costs
// grows with its files: a node may say of as many as fit into a message.
func TestCompactPlanOfManyFiles(t *testing.T) {
	files := map[string]File{}
	for i := range 500 {
		files[fmt.Sprintf("/etc/file-%d", i)] = File{Content: strings.Repeat("x", compactFrom)}
	}
	plan := func() *NodePlan {
		return &NodePlan{Instances: []InstancePlan{{Spec: FunctionSpec{Container: &ContainerSpec{Image: "i", Files: files}}}}}
	}
	p, saved := plan().Compact()
	if saved != 499*compactFrom || len(p.Contents) != 1 {
		t.Fatalf("%d bytes are saved, %d contents are left", saved, len(p.Contents))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := p.Expand(); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if !reflect.DeepEqual(p, plan()) {
		t.Error("it is not what it was")
	}
	if cost := after.TotalAlloc - before.TotalAlloc; cost > 2<<20 {
		t.Errorf("500 files cost %d bytes", cost)
	}
}
