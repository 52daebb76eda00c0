package ebpf

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/ebpf/classifier"
)

// clangVersion is the major version that made the committed object.
const clangVersion = "14"

// TestObject rebuilds the committed object and compares.
func TestObject(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("clang", "--version").Output()
	if err != nil {
		t.Skip("needs clang to rebuild the programs")
	}
	if !strings.Contains(string(out), "version "+clangVersion+".") {
		t.Skipf("needs clang %s, which made the committed object; here is %s", clangVersion, strings.SplitN(string(out), "\n", 2)[0])
	}
	if _, err := os.Stat("/usr/include/bpf/bpf_helpers.h"); err != nil {
		t.Skip("needs libbpf's headers to rebuild the programs")
	}
	dir := t.TempDir()
	build := exec.Command("make", "-C", "../../bpf", "-B", "DRIVER="+dir)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("rebuild: %v\n%s", err, out)
	}
	for name, committed := range map[string][]byte{"steer_bpfel.o": object, "functions_bpfel.o": dispatcherObject, "exit_hook_bpfel.o": exitObject} {
		fresh, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(fresh, committed) {
			t.Errorf("the committed %s is not what bpf/ makes; run go generate ./datapath/ebpf", name)
		}
	}
}

// TestLayouts compares the layouts of both sides, field by field.
func TestLayouts(t *testing.T) {
	spec, err := objectSpec(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]any{
		"flow_key": flowKey{}, "flow": flowValue{}, "nat": natValue{}, "vport": vportValue{}, "port": portValue{},
		"own_key": ownKey{}, "addr_key": addrKey{}, "peer": peerValue{}, "peer_ref": peerRef{}, "rule": classifier.Rule{},
		"table": tableValue{}, "member": memberValue{}, "group": groupValue{}, "path": pathValue{},
		"uplink": uplinkValue{}, "uplink_counters": uplinkCounters{}, "fast": fastValue{}, "hop": hopValue{}, "hop_slot": hopSlot{},
		"nat_prefix": natPrefix{}, "node": nodeValue{}, "tenant": tenantValue{}, "quota": quotaValue{}, "rate": rateValue{}, "admission": admissionValue{}, "tenant_counters": tenantCounters{},
		"function": functionValue{}, "function_counters": functionCounters{}, "weights_key": weightsKey{},
		"vport_counters": vportCounters{}, "path_counters": pathCounters{}, "totals": totalCounters{},
	} {
		var c *btf.Struct
		if err := spec.Types.TypeByName(name, &c); err != nil {
			t.Errorf("struct %s: %v", name, err)
			continue
		}
		compareLayout(t, name, c, reflect.TypeOf(v))
	}
}

func compareLayout(t *testing.T, name string, c *btf.Struct, g reflect.Type) {
	t.Helper()
	if uintptr(c.Size) != g.Size() {
		t.Errorf("struct %s has %d bytes in C, %d in Go", name, c.Size, g.Size())
	}
	if len(c.Members) != g.NumField() {
		t.Errorf("struct %s has %d fields in C, %d in Go", name, len(c.Members), g.NumField())
		return
	}
	for i, m := range c.Members {
		if f := g.Field(i); uintptr(m.Offset.Bytes()) != f.Offset {
			t.Errorf("struct %s: %s is at %d in C, %s at %d in Go", name, m.Name, m.Offset.Bytes(), f.Name, f.Offset)
		}
	}
}

// TestCapacities compares what the contract says there is room for with what there is. Place 0
// of arrays is none.
func TestCapacities(t *testing.T) {
	spec, err := objectSpec(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint32{
		"vports": onpath.MaxVports + 1, "slots": onpath.MaxVports + 1, "paths": onpath.MaxPaths + 1,
		"table_ids": onpath.MaxTables + 1, "tables": onpath.MaxTables + 1, "rules": onpath.MaxTableCells,
		"groups": onpath.MaxGroups, "peers": onpath.MaxPeers + 1, "peer_addrs": onpath.MaxPeers + 1,
	} {
		if got := spec.Maps[name].MaxEntries; got != want {
			t.Errorf("map %s has %d places, must have %d", name, got, want)
		}
	}
	var g, n *btf.Struct
	if err := errors.Join(spec.Types.TypeByName("group", &g), spec.Types.TypeByName("node", &n)); err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]uint32{"members": onpath.MaxMembers, "nat": onpath.MaxNAT} {
		for _, m := range append(g.Members, n.Members...) {
			if a, ok := m.Type.(*btf.Array); ok && m.Name == field && a.Nelems != want {
				t.Errorf("there is room for %d %s, must be for %d", a.Nelems, field, want)
			}
		}
	}
}

// TestReasons compares the drop reasons of both sides by name and number.
func TestReasons(t *testing.T) {
	if len(onpath.DropReasons)+1 > maxDropReasons {
		t.Errorf("there are %d drop reasons, the counters have room for %d", len(onpath.DropReasons), maxDropReasons-1)
	}
	header, err := os.ReadFile("../../bpf/abi.h")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(header), "enum drop_reason {")
	list, _, _ = strings.Cut(list, "};")
	var names []string
	for _, line := range strings.Split(list, "\n") {
		if name, _, ok := strings.Cut(strings.TrimSpace(line), ","); ok {
			name, _, _ = strings.Cut(name, " ")
			names = append(names, strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "DROP_"), "_", "-")))
		}
	}
	if len(names) != len(onpath.DropReasons)+2 { // with none and the count
		t.Fatalf("abi.h lists %v", names)
	}
	for i, r := range onpath.DropReasons {
		if names[i+1] != string(r) {
			t.Errorf("drop reason %d is %s in C, %s in Go", i+1, names[i+1], r)
		}
	}
}
